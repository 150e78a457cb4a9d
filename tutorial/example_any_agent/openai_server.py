"""The same agent as a server, with OpenAI's SDK, which reads its answers as they are sampled.

    python tutorial/example_any_agent/openai_server.py 9000

One process plays all episodes, so that the SDK is imported once.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agent import solve
from openai import OpenAI

CLIENT = OpenAI(base_url="http://127.0.0.1", api_key="each episode has its own")


def ask(client: OpenAI, model: str, messages: Any) -> str:
    """The model's answer, as it comes."""
    stream = client.chat.completions.create(model=model, messages=messages, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


class Episode(BaseHTTPRequestHandler):
    """Answers one POST, an episode, with its result."""

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        client = CLIENT.with_options(base_url=given["base_url"], api_key=given["api_key"])
        answer = solve(given["task"]["main_query"], partial(ask, client, given["model"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"final_answer": answer}).encode())

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing of a request that was answered."""


class Server(ThreadingHTTPServer):
    """Takes all episodes of a step at once."""

    request_queue_size = 128


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1])), Episode).serve_forever()
