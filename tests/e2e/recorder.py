"""An engine that writes down exactly what reaches it, and answers every surface in a fixed way."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CHUNK = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]}
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"}}
ANSWERS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"choices": [CHOICE], "usage": USAGE},
    "/v1/completions": {"choices": [{"text": "x", "finish_reason": "stop"}], "usage": USAGE},
    "/v1/messages": {"type": "message", "content": [], "stop_reason": "end_turn"},
    "/v1/responses": {"object": "response", "status": "completed", "output": []},
    "/v1/embeddings": {"object": "list", "data": [], "usage": USAGE},
    "/v1/score": {"object": "list", "data": [], "usage": USAGE},
    "/v1/rerank": {"results": [], "usage": USAGE},
    "/classify": {"data": [], "usage": USAGE},
    "/pooling": {"data": [], "usage": USAGE},
    "/tokenize": {"tokens": [], "count": 0},
    "/detokenize": {"prompt": ""},
    "/v1/audio/transcriptions": {"text": "x"},
}


@dataclass
class Seen:
    """One request as it came: the target and every header line, in order, and the body."""

    target: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def names(self) -> list[str]:
        """Header names as they are compared, repetitions included."""
        return [name.lower() for name, _ in self.headers]

    def header(self, name: str) -> str:
        """The one value of a header."""
        (value,) = [value for key, value in self.headers if key.lower() == name]
        return value

    def json(self) -> Any:
        """The body, refusing a key that stands twice."""

        def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            found = dict(pairs)
            assert len(found) == len(pairs), f"a key stands twice: {pairs}"
            return found

        return json.loads(self.body, object_pairs_hook=once)


@dataclass
class Recorder:
    """The requests that came, health and metrics left out."""

    url: str
    seen: list[Seen] = field(default_factory=list)


@contextmanager
def recorder() -> Iterator[Recorder]:
    """Run the engine on a free port until the block ends."""
    record = Recorder("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path not in {"/health", "/metrics", "/version", "/load"}:
                record.seen.append(Seen(self.path, self.headers.items(), b""))
            self._answer({})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            record.seen.append(Seen(self.path, self.headers.items(), body))
            self._answer(ANSWERS.get(self.path, {"wrong": self.path}))

        def _answer(self, answer: dict[str, Any]) -> None:
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            # What an engine says about itself and its host must not get to callers.
            self.send_header("x-engine-host", "10.0.0.7")
            self.send_header("set-cookie", "engine=1")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    record.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield record
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
