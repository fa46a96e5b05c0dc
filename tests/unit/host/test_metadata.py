"""Answers of metadata servers, of which a wrong one is never a notice."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.bare_ranks import wait_until
from train.host import metadata
from train.host.metadata import Answer, Finding, MetadataError

GOOGLE = {"metadata-flavor": "Google"}
NONE = Answer(404, "<html>Not Found</html>", {})
PAGE = "<html><body>TRUE</body></html>"
DEEP = "[" * 100_000


def label(value: object) -> str:
    """Return the same id of a case in all processes, although its text contains the time."""
    return re.sub(r"\d{4}-\d\d-\d\dT|\d\d [A-Z][a-z]{2} \d{4}|\d+:\d+:\d+", "", str(value))[:80]


def in_seconds(seconds: float, form: str = "%Y-%m-%dT%H:%M:%SZ") -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime(form)


def action(**fields: Any) -> str:
    return json.dumps({"action": "terminate", "time": in_seconds(100), **fields})


def events(*found: Any) -> str:
    return json.dumps({"DocumentIncarnation": 1, "Events": list(found)})


def event(**fields: Any) -> dict[str, Any]:
    when = in_seconds(25, "%a, %d %b %Y %H:%M:%S GMT")
    made = {"EventId": "A", "EventType": "Preempt", "EventStatus": "Scheduled", "NotBefore": when}
    return {**made, "Resources": ["vm-1", "vm-2"], **fields}


@pytest.mark.parametrize(("text", "seconds"), [("TRUE", 30.0), ("TRUE\n", 30.0), ("FALSE", None)])
def test_the_answer_of_google_cloud(text: str, seconds: float | None) -> None:
    assert metadata.parse_gcp(Answer(200, text, GOOGLE)) == Finding(seconds)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, "TRUE", {}),  # some other server
        *(Answer(200, text, GOOGLE) for text in ("", "true", "TRUE TRUE", PAGE, "1", "{}")),
        *(Answer(status, "TRUE", GOOGLE) for status in (301, 302, 403, 404, 503)),
    ],
)
def test_other_answers_of_google_cloud_are_errors(answer: Answer) -> None:
    with pytest.raises(MetadataError):
        metadata.parse_gcp(answer)


@pytest.mark.parametrize("what", ["terminate", "stop", "hibernate"])
def test_the_answer_of_aws(what: str) -> None:
    found = metadata.parse_aws(Answer(200, action(action=what), {}), NONE)
    assert found.seconds is not None
    assert 90 < found.seconds <= 100
    assert not found.at_risk
    assert metadata.parse_aws(NONE, NONE) == Finding()


def test_a_recommendation_of_aws_is_no_notice() -> None:
    recommended = Answer(200, json.dumps({"noticeTime": in_seconds(-5)}), {})
    assert metadata.parse_aws(NONE, recommended) == Finding(None, at_risk=True)


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_a_time_that_a_wrong_clock_explains_is_not_used(seconds: float) -> None:
    found = metadata.parse_aws(Answer(200, action(time=in_seconds(seconds)), {}), NONE)
    assert found.seconds == 120


@pytest.mark.parametrize(
    "text",
    [
        *("", "TRUE", "null", "[]", "{}", PAGE, DEEP, '{"action": "terminate"}'),
        *(action(action=what) for what in ("none", "", None, 1, ["stop"])),
        *(action(time=when) for when in ("", "soon", None, 1764288000, "2026-99-01T00:00:00Z")),
    ],
    ids=label,
)
def test_other_answers_of_aws_are_errors(text: str) -> None:
    with pytest.raises(MetadataError):
        metadata.parse_aws(Answer(200, text, {}), NONE)
    with pytest.raises(MetadataError):
        metadata.parse_aws(NONE, Answer(200, text, {}))


@pytest.mark.parametrize(
    ("fields", "left", "least", "most"),
    [
        ({}, 25, 15, 25),
        ({"EventType": "Terminate"}, 600, 590, 600),
        ({"EventStatus": "Started"}, None, 30, 30),
        ({}, -100, 30, 30),
    ],
)
def test_the_answer_of_azure(
    fields: dict[str, str], left: float | None, least: float, most: float
) -> None:
    when = "" if left is None else in_seconds(left, "%a, %d %b %Y %H:%M:%S GMT")
    text = events(event(EventType="Freeze"), event(NotBefore=when, **fields))
    seconds = metadata.parse_azure(Answer(200, text, {}), "vm-1").seconds
    assert seconds is not None
    assert least <= seconds <= most


@pytest.mark.parametrize(
    "text",
    [
        events(),
        events(event(Resources=["vm-10"])),
        events(event(Resources=[])),
        *(events(event(EventType=kind)) for kind in ("Freeze", "Reboot", "Redeploy", "")),
    ],
    ids=label,
)
def test_other_events_of_azure_end_nothing(text: str) -> None:
    assert metadata.parse_azure(Answer(200, text, {}), "vm-1") == Finding()


@pytest.mark.parametrize(
    "answer",
    [
        *(Answer(200, text, {}) for text in ("", "TRUE", "[]", "{}", PAGE, DEEP)),
        *(
            Answer(200, f'{{"Events": {value}}}', {})
            for value in ("null", "{}", '"x"', "[1]", "[{}]")
        ),
        *(Answer(200, events(event(**{"NotBefore": when})), {}) for when in ("soon", 5)),
        Answer(200, events(event(Resources="vm-1")), {}),
        Answer(200, events(event(EventStatus="Canceled")), {}),
        Answer(410, events(event()), {}),
    ],
)
def test_other_answers_of_azure_are_errors(answer: Answer) -> None:
    with pytest.raises(MetadataError):
        metadata.parse_azure(answer, "vm-1")


def test_the_answers_of_another_server() -> None:
    assert metadata.parse_url(Answer(200, "TRUE\n", {})) == Finding(30)
    for text in (action(), in_seconds(100)):
        seconds = metadata.parse_url(Answer(200, text, {})).seconds
        assert seconds is not None
        assert 90 < seconds <= 100
    for status, text in ((404, PAGE), (204, ""), (200, "FALSE"), (200, "")):
        assert metadata.parse_url(Answer(status, text, {})) == Finding()
    for status, text in ((500, "TRUE"), (302, "TRUE"), (200, PAGE), (200, DEEP), (200, "{}")):
        with pytest.raises(MetadataError):
            metadata.parse_url(Answer(status, text, {}))


@pytest.mark.parametrize(
    ("files", "cloud"),
    [
        ({}, ""),
        ({"product_name": "Google Compute Engine", "sys_vendor": "Google"}, "gcp"),
        ({"product_name": "g4dn.xlarge", "sys_vendor": "Amazon EC2"}, "aws"),
        ({"product_name": "HVM domU", "bios_version": "4.11.amazon"}, "aws"),
        (
            {
                "sys_vendor": "Microsoft Corporation",
                "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77",
            },
            "azure",
        ),
        ({"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine"}, ""),
        ({"product_name": "Google", "sys_vendor": "Dell Inc."}, ""),
    ],
)
def test_the_firmware_names_the_cloud(tmp_path: Path, files: dict[str, str], cloud: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert metadata.cloud_of(str(tmp_path)) == cloud


Respond = Callable[[str, str], "tuple[int, dict[str, str], bytes]"]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Respond], list[str]]]:
    """Yield a function that starts a server at the address of all clouds.

    It returns the requests that the server got, as they arrive.
    """
    servers = []

    def start(respond: Respond) -> list[str]:
        requests: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                requests.append(f"{self.command} {self.path}")
                status, headers, body = respond(self.command, self.path)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def do_PUT(self) -> None:
                self.do_GET()

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(metadata, "SERVER", address)
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        return requests

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


Serve = Callable[[Respond], "list[str]"]


def test_google_cloud_is_asked_to_wait_for_a_change(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = threading.Event()

    def respond(_: str, path: str) -> tuple[int, dict[str, str], bytes]:
        if "wait_for_change=true" not in path:
            return 200, {"Metadata-Flavor": "Google", "ETag": "0a1b"}, b"FALSE"
        assert "last_etag=0a1b" in path
        changed.wait(60)
        return 200, {"Metadata-Flavor": "Google", "ETag": "2c3d"}, b"TRUE"

    requests = serve(respond)
    monkeypatch.setattr(metadata, "AT_ONCE_S", 0.01)
    asking = metadata.Asking("gcp")
    asking.start()
    wait_until(lambda: len(requests) > 1, "the second request")
    assert asking.last == Finding()
    changed.set()
    wait_until(lambda: asking.last == Finding(30), "the notice")


def test_aws_is_asked_with_a_token_that_is_renewed(serve: Serve) -> None:
    tokens = iter([b"first", b"second"])
    given: list[str] = []

    def respond(method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        if method == "PUT":
            given.append(path)
            return 200, {}, next(tokens)
        if len(given) == 1 and len(requests) > 3:
            return 401, {}, b""
        if path.endswith("instance-action") and len(given) == 2:
            return 200, {}, action().encode()
        return 404, {}, PAGE.encode()

    requests = serve(respond)
    server = metadata.Server("aws")
    assert server.ask() == Finding()
    seconds = server.ask().seconds
    assert seconds is not None
    assert seconds > 60
    assert given == ["/latest/api/token"] * 2


def test_azure_is_asked_for_the_name_until_it_is_known(serve: Serve) -> None:
    names = iter([PAGE.encode(), b"vm-2"])

    def respond(_: str, path: str) -> tuple[int, dict[str, str], bytes]:
        return 200, {}, next(names) if "/name?" in path else events(event()).encode()

    serve(respond)
    server = metadata.Server("azure")
    with pytest.raises(MetadataError):
        server.ask()
    for _ in range(2):
        assert server.ask().seconds is not None
    assert next(names, None) is None


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (200, {"Metadata-Flavor": "Google"}, b"TRUE" + b" " * 100_000),
        (200, {"Metadata-Flavor": "Google"}, b"TRUE\xff"),
        (302, {"Metadata-Flavor": "Google", "Location": "/true"}, b"TRUE"),
        (200, {}, PAGE.encode()),
    ],
)
def test_a_wrong_answer_is_no_notice(
    serve: Serve, status: int, headers: dict[str, str], body: bytes
) -> None:
    requests = serve(lambda method, path: (status, headers, body))
    for cloud in metadata.CLOUDS:
        assert metadata.ask_once(cloud, 30) is None
    assert not [request for request in requests if "/true" in request]


def test_a_server_that_does_not_answer_in_time_is_not_waited_for(serve: Serve) -> None:
    never = threading.Event()

    def respond(method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        never.wait(60)
        return 200, {"Metadata-Flavor": "Google"}, b"TRUE"

    serve(respond)
    assert metadata.ask_once("gcp", 0.1) is None
    never.set()


def test_no_server_is_asked_elsewhere(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    requests = serve(lambda method, path: (200, {"Metadata-Flavor": "Google"}, b"TRUE"))
    monkeypatch.setattr(metadata, "DMI", str(tmp_path))
    for setting in (metadata.AUTO, metadata.OFF):
        assert metadata.ask_once(setting, 30) is None
        asking = metadata.Asking(setting)
        asking.start()
        assert asking.ask_now(30) is None
    time.sleep(0.1)
    assert requests == []
    (tmp_path / "product_name").write_text("Google Compute Engine\n")
    assert metadata.ask_once(metadata.AUTO, 30) == Finding(30)


def test_a_server_that_fails_is_asked_again(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter([(500, b""), (200, b"garbled"), (200, b"FALSE")])

    def respond(method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        status, body = next(answers, (200, b"TRUE"))
        return status, {}, body

    serve(respond)
    monkeypatch.setattr(metadata, "EVERY_S", 0.01)
    asking = metadata.Asking(metadata.SERVER + "/notice")
    asking.start()
    wait_until(lambda: asking.last == Finding(30), "the notice")
    assert capsys.readouterr().err.count("notices of preemption (url): ") == 1
