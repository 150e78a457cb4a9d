"""A collector of OpenTelemetry's traces over HTTP, as AgentScope exports them, and a file of what came."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_IDS = ("traceId", "spanId", "parentSpanId")


@dataclass
class Collector:
    """What was exported to it, as OTLP writes it in JSON: ids in hexadecimal."""

    url: str = ""
    resources: list[dict[str, Any]] = field(default_factory=list)

    def take(self, body: bytes) -> None:
        from google.protobuf.json_format import MessageToDict
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        self.resources += [_with_hex_ids(each) for each in MessageToDict(request)["resourceSpans"]]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"resourceSpans": self.resources}))


@contextmanager
def collecting() -> Iterator[Collector]:
    """Listen on a port of its own until the block ends."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _with_hex_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_hex_ids(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64decode(each).hex() if key in _IDS and isinstance(each, str) else _with_hex_ids(each)
        for key, each in value.items()
    }
