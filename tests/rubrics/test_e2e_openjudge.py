"""`make bench-rubrics`: rubrics learned here and by py-openjudge from the same labels, with the same model of rules.

The model really marks answers by rubrics, and errs at a known rate; the figures compare the methods and what they cost,
and say nothing about language models.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from answering import AnsweringServer
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from test_rubrics import WORDS, astune, careful_model, has, labelled, marked, server, written  # noqa: F401 - fixtures
from token_server import listening

from astune.rubrics import agreement

pytestmark = pytest.mark.e2e

PYTHON = Path(__file__).parents[2] / ".venv-openjudge" / "bin" / "python"
PEER = Path(__file__).with_name("openjudge_peer.py")
PAIRS = 70


def pairs(seed: int) -> list[dict[str, Any]]:
    """Two answers to each query, of which one is better: what both methods take."""
    rows: list[dict[str, Any]] = []
    number = 0
    while len(rows) < PAIRS:
        one, other = (row["metadata"] for row in labelled(seed * 10_000 + number, 2))
        number += 1
        if one["score"] != other["score"]:
            best = max(one["score"], other["score"])
            candidates = [{"answer": each["answer"], "rank": 1 + (each["score"] < best)} for each in (one, other)]
            rows.append({"main_query": f"Ask for tea, {seed}.{number}.", "metadata": {"candidates": candidates}})
    return rows


class PeerServer(AnsweringServer):
    """The same model, asked in py-openjudge's words."""

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        asked = "\n".join(str(message["content"]) for message in body["messages"])
        text = json.dumps(self.answered(asked))
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
        return JSONResponse(
            {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        )

    def answered(self, asked: str) -> dict[str, Any]:
        if "aggregate the following" in asked:
            tips = re.findall(r"The answer is (\w+)\.", asked)
            unique = list(dict.fromkeys(f"The answer is {name}." for name in tips))
            return {"categories": [{"theme": "manners", "tips": unique}], "reason": ""}
        if "All Responses (Total" in asked:
            criteria, _, rest = asked.partition("Evaluation Criteria:")[2].partition("All Responses (Total")
            texts = re.findall(r"Response \d+:\n(.*)", rest.partition("## Task Requirements")[0])
            rubrics = re.findall(r"The answer is \w+\.", criteria)
            met = [sum(marked(text, rubric) == "yes" for rubric in rubrics) for text in texts]
            order = sorted(range(len(texts)), key=lambda i: (-met[i], random.Random(texts[i]).random()))
            return {"name": "rank", "rank": [order.index(i) + 1 for i in range(len(texts))], "reason": ""}
        found = re.findall(r"Response \d+:\n(.*)\nExpected rank: (\d)", asked)
        better, worse = (text for text, _ in sorted(found, key=lambda each: each[1]))
        differing = [name for name in WORDS if has(better, name) and not has(worse, name)] or ["long"]
        before = re.findall(r"The answer is (\w+)\.", asked.partition("Previous")[2])
        left = [name for name in differing if name not in before] or differing
        return {"rubrics": [f"The answer is {left[0]}."], "reason": ""}


def test_rubrics_are_as_good_as_those_of_py_openjudge(astune: Any, server: AnsweringServer, tmp_path: Path) -> None:  # noqa: F811
    if not PYTHON.is_file():
        pytest.skip("there is no .venv-openjudge; `make bench-rubrics` makes it")
    labels, fresh = written(tmp_path / "labels.jsonl", pairs(1)), written(tmp_path / "fresh.jsonl", pairs(2))
    out = tmp_path / "rubrics.yaml"
    listwise = ("--set", "rubrics.grader_mode=listwise")
    astune("rubrics", "learn", str(labels), "--out", str(out), *listwise)
    asked = len(server.bodies)
    told = astune("rubrics", "check", str(out), str(fresh), *listwise)
    own = re.search(r"│ rubrics +│ ([\d.]+) \[([\d.]+), ([\d.]+)\]", told)
    assert own
    kept = [rubric["text"] for theme in yaml.safe_load(out.read_text())["themes"] for rubric in theme["rubrics"]]
    with listening(PeerServer(rule=careful_model)) as peer:
        done = subprocess.run(
            [PYTHON, PEER, f"{peer.url}/v1", labels, fresh, tmp_path / "peer.json"],
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads((tmp_path / "peer.json").read_text())
        peer_asked = len(peer.bodies) - PAIRS
    theirs = agreement(
        [[(-a, -b) for a, b in zip(each["labels"], each["ranks"], strict=True)] for each in found["graded"]]
    )
    low, high = theirs.accuracy_interval
    print(  # noqa: T201 - what the page shows
        f"\nhere: {own[1]} [{own[2]}, {own[3]}] of {PAIRS} held-out pairs, {len(kept)} rubrics, "
        f"{asked} questions to learn"
        f"\npy-openjudge: {theirs.accuracy:.2f} [{low:.2f}, {high:.2f}], "
        f"{len(set(re.findall(r'The answer is .*?[.]', found['rubrics'])))} rubrics, {peer_asked} questions to learn"
    )
    assert float(own[1]) >= low
