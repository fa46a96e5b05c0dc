"""Pages, downloads, updates and actions over HTTP."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.bare_ranks import wait_until
from tests.support.dashboards import Client, dashboard
from tests.support.run_folders import write_attempt, write_manifest

FAILED = {"state": "failed", "message": "exited", "root_cause": "worker-0", "restart": False}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    for name in ("night", "other"):
        write_manifest(tmp_path / name, ["worker-0"])
        write_attempt(tmp_path / name, ["worker-0"], range(1, 5), FAILED)
    write_attempt(tmp_path / "night/attempts/1", ["worker-0"], range(1, 3), FAILED)
    with dashboard(tmp_path) as made:
        made.log_in()
        yield made


def first_update(client: Client, path: str) -> dict[str, Any]:
    """Return the first of a page's updates."""
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=10)
    connection.request("GET", path, headers={"Cookie": client.cookie})
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    while not (line := answer.readline()).startswith(b"data: "):
        assert line
    connection.close()
    found: dict[str, Any] = json.loads(line[6:])
    return found


def test_each_page_is_shown_and_loads_only_from_here(client: Client) -> None:
    pages = {
        "/": "night",
        "/jobs/night": "chart-data",
        "/jobs/night/files": "result.json",
        "/jobs/night/logs/worker-0": 'id="log"',
        "/jobs/night/logs/worker-0?attempt=1": "Attempt 1",
        "/jobs/night/logs/worker-0?q=LAST": "last line of worker-0",
        "/jobs/night/stop": "Stop the job",
        "/jobs/night/restart": "Restart the job",
        "/jobs/night/tensorboard": "Start TensorBoard",
        "/compare?first=night&second=other": "Differences",
        "/doctor": "has not examined",
    }
    for path, text in pages.items():
        answer = client.ask(path)
        assert answer.status == 200, path
        assert text in answer.text, path
        assert "http://" not in answer.text, path
        assert "https://" not in answer.text, path
    for name in ("page.css", "dashboard.css", "charts.js", "dashboard.js", "plotly.min.js"):
        assert client.ask(f"/static/{name}").status == 200


def test_updates_are_sent_as_events(client: Client) -> None:
    assert set(first_update(client, "/updates")) == {"jobs", "hosts", "actions", "problem"}
    assert {"summary", "ranks", "charts"} <= set(first_update(client, "/jobs/night/updates"))
    lines = first_update(client, "/jobs/night/logs/worker-0/updates?attempt=")
    assert lines == {"lines": ["20%", "last line of worker-0"], "current": "", "first": True}
    assert client.ask("/jobs/unknown/updates").status == 404


def test_a_page_that_is_closed_is_noticed(client: Client) -> None:
    first_update(client, "/updates")
    wait_until(lambda: not is_asked(client), "the end of the updates")


def is_asked(client: Client) -> bool:
    """Return whether the hosts are asked for anything in more than a second."""
    before = client.hosts.kept
    time.sleep(1.5)
    return bool(client.hosts.kept > before)


def test_files_are_downloaded_and_never_shown(client: Client) -> None:
    for path in ("/jobs/night/files/result.json", "/jobs/night/logs/worker-0?download"):
        answer = client.ask(path)
        assert answer.status == 200
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.headers["content-type"] == "application/octet-stream"
        assert "sandbox" in answer.headers["content-security-policy"]
    assert client.ask("/jobs/night/files/../../other/result.json").status == 404
    assert client.ask("/jobs/night/files/nothing").status == 404


def test_an_action_runs_a_command_and_shows_its_exit(client: Client) -> None:
    path = "/jobs/night/restart"
    started = client.post(path, {"key": client.key(path)})
    assert started.headers["location"] == "/actions/1"
    wait_until(lambda: "exit code 3" in client.ask("/actions/1").text, "its end")
    page = client.ask("/actions/1").text
    assert "train restart --on-interrupt=leave night" in page
    assert "the job was stopped" in page
    assert "exit code 3" in client.ask("/").text
    assert client.ask("/actions/2").status == 404
    assert client.post("/jobs/night/clean", {"key": client.key(path)}).status == 404
    assert client.post("/jobs/unknown/stop", {"key": client.key(path)}).status == 404


def test_the_doctor_is_started_quick_or_in_full(client: Client) -> None:
    for number, form in ((1, "quick"), (2, "full")):
        client.post("/doctor", {"key": client.key("/doctor"), "form": form})
        page = f"/actions/{number}"
        wait_until(lambda page=page: "exit code 3" in client.ask(page).text, page)  # type: ignore[misc]
        assert ("--quick" in client.ask(page).text) == (form == "quick")


def test_a_damaged_folder_is_an_error_on_its_page_only(client: Client, tmp_path: Path) -> None:
    (tmp_path / "night/manifest.json").write_text('{"attempt": "x"}')
    assert client.ask("/jobs/night").status == 500
    assert client.ask("/compare?first=night&second=other").status == 500
    assert client.ask("/").status == 200
    assert client.ask("/jobs/other").status == 200
