"""Requests that are refused, and the headers of answers."""

from __future__ import annotations

import random
import string
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.dashboards import PASSWORD, TOKEN, Client, dashboard
from tests.support.run_folders import write_attempt, write_manifest
from train.cli.dashboard import guard

FAILED = {"state": "failed", "message": "exited", "root_cause": "worker-0", "restart": False}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    write_manifest(tmp_path / "runs/night", ["worker-0"])
    write_attempt(tmp_path / "runs/night", ["worker-0"], range(1, 5), FAILED)
    (tmp_path / "secret").write_text("of another folder")
    return tmp_path / "runs"


@pytest.fixture
def client(runs: Path) -> Iterator[Client]:
    with dashboard(runs) as made:
        yield made


def test_without_a_session_nothing_is_shown(client: Client) -> None:
    for path in ("/", "/updates", "/jobs/night", "/doctor", "/actions/1", "/compare", "/nothing"):
        answer = client.ask(path)
        assert answer.status == 403, path
        assert "night" not in answer.text
    assert client.ask(f"/?token={TOKEN[:-1]}x").status == 403
    assert client.ask("/?token=").status == 403
    client.cookie = f"train-{client.port}=1.{'0' * 64}"
    assert client.ask("/").status == 403
    assert client.hosts.kept == 0


def test_the_token_opens_a_session_that_other_sites_cannot_use(client: Client) -> None:
    opened = client.ask(f"/?token={TOKEN}")
    assert (opened.status, opened.headers["location"]) == (303, "/")
    cookie = opened.headers["set-cookie"]
    assert cookie.startswith(f"train-{client.port}=")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    client.log_in()
    page = client.ask("/")
    assert page.status == 200
    assert "night" in page.text
    policy = page.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "default-src 'none'" in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "same-origin"
    assert page.headers["cache-control"] == "no-store"
    assert "<script>" not in page.text


@pytest.mark.parametrize("host", ["evil.example", f"127.0.0.1.evil.example:{1}", "", "192.0.2.1"])
def test_another_host_name_is_refused(client: Client, host: str) -> None:
    client.log_in()
    assert client.ask("/", Host=host).status in (400, 421)
    assert client.ask("/static/page.css", Host=host).status in (400, 421)


def test_a_form_of_another_site_or_session_is_refused(client: Client) -> None:
    client.log_in()
    key = client.key("/jobs/night/stop")
    here = f"http://127.0.0.1:{client.port}"
    path = "/jobs/night/stop"
    for fields, headers in (
        ({}, {}),
        ({"key": "0" * 64}, {}),
        ({"key": key}, {"Origin": "https://evil.example"}),
        ({"key": key}, {"Origin": "null"}),
        ({"key": key}, {"Origin": "http://["}),
        ({"key": key}, {"Sec_Fetch_Site": "cross-site"}),
        ({"key": key}, {"Sec_Fetch_Site": "same-site"}),
    ):
        assert client.post(path, fields, **headers).status == 403, (fields, headers)
    assert client.ask("/actions/1").status == 404, "nothing was started"
    answer = client.post(path, {"key": key}, Origin=here, Sec_Fetch_Site="same-origin")
    assert (answer.status, answer.headers["location"]) == (303, "/actions/1")


def test_a_body_that_is_too_large_or_not_a_form_is_refused(client: Client) -> None:
    client.log_in()
    key = client.key("/jobs/night/stop")
    path, large = "/jobs/night/stop", f"key={key}&x=" + "x" * guard.FORM_BYTES
    assert client.ask(path, "POST", large).status == 413
    chunks = b"".join(b"1000\r\n" + b"x" * 0x1000 + b"\r\n" for _ in range(8)) + b"0\r\n\r\n"
    chunked = {"Transfer_Encoding": "chunked", "Content_Length": ""}
    assert client.ask(path, "POST", chunks, **chunked).status in (400, 413)
    assert client.ask(path, "POST", f"key={key}", Content_Type="application/json").status == 415
    fields = "&".join(f"a{n}=1" for n in range(guard.FORM_FIELDS + 5))
    assert client.ask(path, "POST", fields).status == 400
    assert client.ask(path, "PUT", "").status == 405
    assert client.ask("/updates", "HEAD").status == 405


def test_read_only_refuses_every_action(runs: Path) -> None:
    with dashboard(runs, read_only=True) as client:
        client.log_in()
        assert "Stop" not in client.ask("/jobs/night").text
        key = client.key("/doctor") if "form" in client.ask("/doctor").text else "0"
        for path in ("/jobs/night/stop", "/jobs/night/restart", "/doctor", "/actions/1/end"):
            assert client.post(path, {"key": key}).status == 403


def test_a_password_opens_a_session_and_wrong_ones_take_time(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "WRONG_PASSWORD_S", 0.3)
    with dashboard(runs, password=PASSWORD) as client:
        asked = client.ask("/")
        assert (asked.status, asked.headers["location"]) == (303, "/login")
        assert 'type="password"' in client.ask("/login").text
        began = time.monotonic()
        assert client.post("/login", {"password": "wrong"}).status == 403
        assert time.monotonic() - began >= 0.3
        assert client.ask(f"/?token={TOKEN}").status == 403
        opened = client.post("/login", {"password": PASSWORD})
        assert opened.status == 303
        client.cookie = opened.headers["set-cookie"].partition(";")[0]
        assert "night" in client.ask("/").text


#: Parts of addresses that a careless server would follow.
CRUEL = (
    *("..", ".", "", "%2e%2e", "..%2f..%2fsecret", "%00", "night%00", "night/../..", "-rf"),
    *("../secret", "....//", "/etc/passwd", "%252e%252e", "\\..", "connection.json", ".followed"),
    *("<script>", "{{7*7}}", "'\"`;$(id)", "\u202e", "x" * 3000, "-1", "1e9", "NaN", "²"),
)
PLACES = (
    *("/{}", "/jobs/{}", "/jobs/{}/updates", "/jobs/{}/logs/worker-0", "/jobs/night/logs/{}"),
    *("/jobs/night/logs/{}/updates", "/jobs/night/logs/worker-0?attempt={}", "/jobs/night/{}"),
    *("/jobs/night/files/{}", "/jobs/{}/files/result.json", "/compare?first={}&second=night"),
    *("/compare?first=night&second={}", "/actions/{}", "/static/{}"),
    *("/jobs/night/logs/worker-0?q={}", "/?token={}", "/jobs/night/files/logs/{}"),
)


def test_generated_requests_leave_no_traceback_and_show_no_other_file(
    client: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    client.log_in()
    chosen = random.Random(7)
    letters = string.printable[:94]
    noise = ["".join(chosen.choices(letters, k=chosen.randint(1, 30))) for _ in range(30)]
    asked = 0
    for place in PLACES:
        for part in chosen.sample([*CRUEL, *noise], 12):
            path = place.format(quote(part, safe="/%.~:@!$&'()*+,;=-_"))
            answer = client.ask(path)
            asked += 1
            assert answer.status in (200, 303, 400, 403, 404), (path, answer.text[-300:])
            assert "of another folder" not in answer.text
            assert "root:" not in answer.text
            assert "<script>alert" not in answer.text
            assert answer.headers["content-security-policy"]
    assert asked > 100
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
