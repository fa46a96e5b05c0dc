"""Stand-ins for the metadata servers of clouds, on a host of the test bed at their own address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import PurePosixPath

from tests.support.bare_ranks import wait_until
from tests.support.faults import alongside, between
from tests.support.testbed import Host, Testbed
from tests.support.testbed.engine import docker

#: States of the server: an answer that no cloud gives, no notice, and a notice.
GARBLED, QUIET, NOTICE = "garbled", "quiet", "notice"
_ADDRESS = "169.254.169.254"
_FOLDER = PurePosixPath("/run/metadata")
#: Answers like the clouds' documentation describes it, by the state in a file.
_SERVER = """\
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

folder = sys.argv[1]
TOKEN = "a-token"

def state():
    with open(folder + "/state") as stream:
        return stream.read().strip()

def gmt(seconds, form):
    return time.strftime(form, time.gmtime(time.time() + seconds))

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        with open(folder + "/requests", "a") as log:
            log.write(self.path + "\\n")
        status, headers, body = self.respond()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def do_PUT(self):
        is_token = self.path == "/latest/api/token"
        ttl = self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self.send_response(200 if is_token and ttl else 400)
        self.end_headers()
        self.wfile.write(TOKEN.encode())

    def respond(self):
        if state() == "garbled":
            return 200, {}, "<html><body>TRUE</body></html>"
        if self.path.startswith("/computeMetadata/v1/instance/preempted"):
            if self.headers["Metadata-Flavor"] != "Google":
                return 403, {}, ""
            until = time.monotonic() + 60
            while "wait_for_change=true" in self.path and state() == "quiet":
                if time.monotonic() > until:
                    break
                time.sleep(0.1)
            preempted = state() == "notice"
            headers = {"Metadata-Flavor": "Google", "ETag": "f1" if preempted else "e0"}
            return 200, headers, "TRUE" if preempted else "FALSE"
        if self.path.startswith("/latest/meta-data/"):
            if self.headers["X-aws-ec2-metadata-token"] != TOKEN:
                return 401, {}, ""
            if state() == "notice" and self.path.endswith("/spot/instance-action"):
                action = {"action": "terminate", "time": gmt(120, "%Y-%m-%dT%H:%M:%SZ")}
                return 200, {}, json.dumps(action)
            return 404, {}, "<html>404</html>"
        if self.headers["Metadata"] != "true":
            return 400, {}, ""
        if self.path.startswith("/metadata/instance/compute/name?"):
            return 200, {}, "worker-b"
        event = {
            "EventId": "A1", "EventType": "Preempt", "ResourceType": "VirtualMachine",
            "Resources": ["worker-b"], "EventStatus": "Scheduled",
            "NotBefore": gmt(30, "%a, %d %b %Y %H:%M:%S GMT"), "DurationInSeconds": -1,
        }
        other = {**event, "Resources": ["worker-a"]}
        events = [other, event] if state() == "notice" else [other]
        return 200, {}, json.dumps({"DocumentIncarnation": 1, "Events": events})

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("169.254.169.254", 80), Handler).serve_forever()
"""


class MetadataServer:
    """A stand-in of all clouds on a host."""

    def __init__(self, bed: Testbed, host: Host) -> None:
        self._exec = partial(bed.exec, host, user="root")

    def become(self, state: str) -> None:
        """Set the state."""
        self._exec("sh", "-c", f"echo {state} > {_FOLDER}/new && mv {_FOLDER}/new {_FOLDER}/state")

    def requests(self) -> list[str]:
        """Return the paths that were asked for."""
        return self._exec("cat", f"{_FOLDER}/requests", check=False).stdout.splitlines()

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait for further requests whose paths contain a text."""
        before = len(self.requests())

        def came() -> bool:
            return sum(text in path for path in self.requests()[before:]) >= count

        wait_until(came, f"{count} requests for {text}", 120)


@contextmanager
def metadata_server(bed: Testbed, host: Host) -> Iterator[MetadataServer]:
    """Run a stand-in on a host, at first with garbled answers."""
    server = MetadataServer(bed, host)
    bed.exec(host, "mkdir", "-p", str(_FOLDER), user="root")
    server.become(GARBLED)
    address = partial(alongside, host, "ip", "address")
    words = ("exec", "--detach", "--user", "root", host.container, "python3", "-c", _SERVER)
    end = ("pkill", "--full", "ThreadingHTTPServer")
    with (
        between(
            partial(address, "add", f"{_ADDRESS}/32", "dev", "lo"),
            partial(address, "del", f"{_ADDRESS}/32", "dev", "lo"),
        ),
        between(
            partial(docker, *words, str(_FOLDER)),
            partial(bed.exec, host, *end, user="root", check=False),
        ),
    ):
        yield server
    bed.exec(host, "rm", "-r", str(_FOLDER), user="root")
