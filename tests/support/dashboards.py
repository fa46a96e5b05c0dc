"""A dashboard without hosts, in a thread of a test, and requests to it."""

from __future__ import annotations

import http.client
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.support.lab import free_port
from train.cli.ansible_options import AnsibleOptions
from train.cli.dashboard import serving
from train.cli.dashboard.access import LOOPBACK, Access
from train.cli.dashboard.actions import Actions
from train.cli.dashboard.hosts import NOTHING
from train.gang.job_records import Listed

TOKEN = "t" * 43
PASSWORD = "a long password"
#: A program that stands in for ``python -m train``.
PROGRAM = "import sys; print(' '.join(sys.argv[1:])); sys.exit(3)"


class NoHosts:
    """Stands in for the follower of hosts; ``kept`` counts how often it was asked to follow."""

    def __init__(self, listed: Listed = NOTHING) -> None:
        self.listed, self.error, self.kept = listed, "", 0

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def keep(self) -> None:
        self.kept += 1


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str


@dataclass
class Client:
    """Sends requests to a dashboard, with the cookie of its session, if any."""

    port: int
    hosts: Any
    cookie: str = ""
    errors: list[str] = field(default_factory=list)

    def ask(
        self, path: str, method: str = "GET", body: str | bytes | None = None, **headers: str
    ) -> Answer:
        """Send a request; ``_`` in names of headers stands for ``-``."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookie:
            sent.setdefault("Cookie", self.cookie)
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=20)
        try:
            connection.putrequest(method, path, skip_host="Host" in sent)
            if body is not None:
                sent.setdefault("Content-Type", "application/x-www-form-urlencoded")
                sent.setdefault("Content-Length", str(len(body)))
            for name, value in sent.items():
                connection.putheader(name, value)
            data = body.encode() if isinstance(body, str) else body
            connection.endheaders(data)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
            return Answer(answer.status, dict(answer.getheaders()), text)
        finally:
            connection.close()

    def post(self, path: str, fields: Mapping[str, str], **headers: str) -> Answer:
        """Send a form."""
        return self.ask(path, "POST", urlencode(fields), **headers)

    def log_in(self) -> None:
        """Open a session with the token."""
        answer = self.ask(f"/?token={TOKEN}")
        assert answer.status == 303, answer
        self.cookie = answer.headers["set-cookie"].partition(";")[0]

    def key(self, path: str) -> str:
        """Return the key of a form on a page."""
        found = re.search(r'name="key" value="([0-9a-f]+)"', self.ask(path).text)
        assert found, path
        return found[1]


@contextmanager
def dashboard(
    runs_dir: Path, listed: Listed = NOTHING, password: str = "", read_only: bool = False
) -> Iterator[Client]:
    """Serve a dashboard for a folder of results."""
    port, hosts = free_port(), NoHosts(listed)
    variables = {"train_job_runs_dir": str(runs_dir)}
    program = (sys.executable, "-c", PROGRAM)
    actions = Actions(AnsibleOptions(("localhost,",)), variables, program)
    bind = "0.0.0.0" if password else LOOPBACK
    rules = Access(TOKEN, password, bind, read_only)
    listener = serving.listen(LOOPBACK, port)
    server, routes = serving.server_of(rules, hosts, actions, variables, port)  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield Client(port, hosts)
    finally:
        routes.is_closing = server.should_exit = True
        thread.join(10)
        listener.close()
    assert not thread.is_alive()
