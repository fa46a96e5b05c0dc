"""The parts of pages. They show data as text only."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.dashboards import NoHosts
from tests.support.run_folders import BEGAN, write_attempt, write_manifest
from train.cli.ansible_options import AnsibleOptions
from train.cli.dashboard import pages as dashboard_pages
from train.cli.dashboard.access import Access
from train.cli.dashboard.actions import Actions
from train.cli.dashboard.hosts import NOTHING
from train.cli.dashboard.pages import Pages, UnknownError
from train.gang.job_records import Listed

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}"
FAILED = {
    **{"state": "failed", "message": "worker-0 exited\nwhat to do: fix it", "restart": False},
    "root_cause": "worker-0",
}


def pages_of(runs: Path, listed: Listed | None = None, read_only: bool = False) -> Pages:
    variables = {"train_job_runs_dir": str(runs)}
    hosts: Any = NoHosts(listed) if listed else NoHosts()
    actions = Actions(AnsibleOptions(("localhost,",)), variables, ("true",))
    return Pages(Access("t" * 43, read_only=read_only), hosts, actions, variables)


def evil_listed() -> Any:
    usage = {
        **{"cores": 2, "load": 1.0, "memory_total": 1, "memory_free": 1, "disk_total": 1},
        **{"disk_free": 1, "gpus": [], "gpu_error": EVIL},
    }
    hold = {"state": "started", "job": "x", "task": EVIL, "user": EVIL, "resources": [EVIL]}
    host = {"answered_at": time.time(), "error": "", "usage": usage, "holds": [hold]}
    lost: dict[str, Any] = {"answered_at": None, "error": EVIL, "usage": None, "holds": []}
    job = {
        **{"job": "other", "state": "failed", "owner": EVIL, "alive": 0, "total": 1},
        **{"hosts": [EVIL], "progress": {}, "started_at": 1.0},
        "ranks": [{"task": "worker-0", "host": EVIL, "phase": "failed", "reason": EVIL}],
    }
    return {"at": time.time(), "hosts": {EVIL: host, "b": lost}, "jobs": [job]}


def test_names_and_texts_of_hosts_are_text_on_every_page(tmp_path: Path) -> None:
    write_manifest(tmp_path / "night", ["worker-0"], script=EVIL)
    write_attempt(tmp_path / "night", ["worker-0"], range(3), {**FAILED, "message": EVIL})
    record = {"t": BEGAN + 9, "step": 9, "metrics": {EVIL: 1.0}}
    with (tmp_path / "night/progress/worker-0.jsonl").open("a") as stream:
        stream.write(json.dumps(record) + "\n")
    (tmp_path / "night/logs/worker-0.log").write_text(EVIL)
    notice = {"t": BEGAN, "notice": {"kind": "x", "task": None, "text": EVIL}}
    (tmp_path / "night/events.jsonl").write_text(json.dumps(notice, sort_keys=True) + "\n")
    pages = pages_of(tmp_path, evil_listed())
    parts = {**pages.overview(), **pages.job("night")}
    charts = parts.pop("charts")
    texts = [str(part) for part in (*parts.values(), *pages.job("other").values())]
    texts.append(pages.render("job.html.j2", "1.x", job="night", parts={}, charts=charts))
    texts.append(pages.comparison("night", "night", "1.x"))
    for text in texts:
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "49" not in re.sub(r"[^>]*GMT|\d{3,}", "", text.partition("{{7*7}}")[2][:20])
    assert sum("alert(1)" in text for text in texts) >= 5, "it was shown"


def test_the_first_page_of_an_empty_folder_says_what_to_do(tmp_path: Path) -> None:
    pages = pages_of(tmp_path)
    parts = pages.overview()
    assert "train run" in str(parts["jobs"])
    assert "Asking the hosts" in str(parts["hosts"])


def test_a_failed_job_shows_cause_remedy_log_and_what_can_be_done(tmp_path: Path) -> None:
    write_manifest(tmp_path / "night", ["worker-0", "worker-1"])
    write_attempt(tmp_path / "night", ["worker-0", "worker-1"], range(3), FAILED)
    write_manifest(tmp_path / "other", ["worker-0"])
    parts = {name: str(part) for name, part in pages_of(tmp_path).job("night").items()}
    assert "what to do: fix it" in parts["summary"]
    assert "last line of worker-0" in parts["logs"]
    assert 'href="/jobs/night/restart"' in parts["state"]
    assert 'href="/jobs/night/stop"' not in parts["state"]
    assert "<option>other</option>" in parts["state"]
    assert 'href="/jobs/night/logs/worker-1"' in parts["ranks"]
    read_only = pages_of(tmp_path, read_only=True).job("night")
    assert "restart" not in str(read_only["state"])


def test_parts_are_made_again_only_when_something_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard_pages, "_CHARTS_S", 0.0)
    write_manifest(tmp_path / "night", ["worker-0"])
    write_attempt(tmp_path / "night", ["worker-0"], range(3), None)
    pages = pages_of(tmp_path)
    first = pages.job("night")
    second = pages.job("night")
    assert all(first[name] is second[name] for name in first)
    with (tmp_path / "night/progress/worker-0.jsonl").open("a") as stream:
        stream.write(json.dumps({"t": BEGAN + 9, "step": 9, "loss": 0.5}) + "\n")
    third = pages.job("night")
    assert "step 9" in str(third["ranks"])
    assert third["charts"] is not first["charts"]


def test_unknown_jobs_and_logs_are_not_found(tmp_path: Path) -> None:
    write_manifest(tmp_path / "night", ["worker-0"])
    write_attempt(tmp_path / "night", ["worker-0"], range(3), None)
    for number in ("1", "10", "2", "old"):
        log = tmp_path / f"quick/attempts/{number}/logs/worker-0.log"
        log.parent.mkdir(parents=True)
        log.write_text("")
    write_manifest(tmp_path / "quick", ["worker-0"])
    pages = pages_of(tmp_path)
    path, attempts = pages.log_of("night", "worker-0", "")
    assert (path, attempts) == (tmp_path / "night/logs/worker-0.log", [])
    path, attempts = pages.log_of("quick", "worker-0", "2")
    assert (path, attempts) == (tmp_path / "quick/attempts/2/logs/worker-0.log", [1, 2, 10])
    for wrong in (("night", "worker-1", ""), ("night", "worker-0", "1"), ("x", "worker-0", ""),
                  ("night", "../worker-0", ""), ("night", "worker-0", "..")):  # fmt: skip
        with pytest.raises(UnknownError):
            pages.log_of(*wrong)
    for unknown in ("", "..", "x", "night/", ".dashboard"):
        with pytest.raises(UnknownError):
            pages.check_job(unknown)
    with pytest.raises(UnknownError):
        pages.job("x")


def test_logs_are_found_among_many_files(tmp_path: Path) -> None:
    write_manifest(tmp_path / "night", ["worker-0"])
    write_attempt(tmp_path / "night", ["worker-0"], range(3), None)
    earlier = tmp_path / "night/attempts/1"
    earlier.mkdir(parents=True)
    for number in range(2_001):
        (earlier / str(number)).touch()
    path, _ = pages_of(tmp_path).log_of("night", "worker-0", "")
    assert path == tmp_path / "night/logs/worker-0.log"


def test_an_old_job_among_many_has_its_page(tmp_path: Path) -> None:
    for number in range(202):
        write_manifest(tmp_path / f"job-{number}", ["worker-0"])
    pages = pages_of(tmp_path)
    rows = {row.job for row in pages.rows.rows(NOTHING)}
    assert len(rows) == 200
    hidden = next(name for name in pages.rows.names() if name not in rows)
    write_attempt(tmp_path / hidden, ["worker-0"], range(3), None)
    assert f"/jobs/{hidden}/files" in str(pages.job(hidden)["state"])


def test_files_that_have_changed_have_another_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    style = tmp_path / "page.css"
    style.touch()
    monkeypatch.setattr(dashboard_pages, "STATIC", {"page.css": (style, "text/css")})
    before = pages_of(tmp_path).render("login.html.j2")
    os.utime(style, (1.0, 1.0))
    assert pages_of(tmp_path).render("login.html.j2") != before
