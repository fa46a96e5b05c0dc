"""A web server that records POST requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support.bare_ranks import wait_until

#: Part of every URL here; it must never be shown.
TOKEN = "T0K3N-0f-the-hook"


class Hook:
    """A web server that records POST requests.

    Attributes:
        answers: the codes of its next answers; 200 when there are no more.
        hold: an event that it waits for before it answers.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.logins: list[str | None] = []
        self.answers: list[int] = []
        self.hold = threading.Event()
        self.hold.set()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.paths.append(self.path)
                hook.logins.append(self.headers["Authorization"])
                hook.requests.append(json.loads(body))
                assert self.headers["Content-Type"] == "application/json"
                hook.hold.wait(60)
                code = hook.answers.pop(0) if hook.answers else 200
                self.send_response(code, f"said {self.path}")
                if code == 302:
                    self.send_header("Location", f"{hook.url}-elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST  # noqa: N815

            def log_message(self, *arguments: Any) -> None:
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/services/{TOKEN}"

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.requests) >= count, self.requests)


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    thread = threading.Thread(target=hook.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield hook
    hook.hold.set()
    hook.server.shutdown()
    hook.server.server_close()
    thread.join()
