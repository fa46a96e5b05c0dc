"""The pages for users in a real browser: they are drawn, and load nothing from a network."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from tests.support.browser import Opened, open_page
from tests.support.lab import CACHE, REPOSITORY, free_port, run
from tests.support.run_folders import BEGAN, charts_of, write_attempt, write_manifest
from train.cli import report
from train.host import processes

COMPLETED = {"state": "completed", "message": "all ranks completed"}


def check(page: Path, name: str, folder: Path, titles: set[str]) -> Opened:
    """Open a page with charts: all are drawn, no script fails, and nothing is loaded."""
    charts = charts_of(page.read_text())
    assert titles <= set(charts)
    opened = open_page(page, name, folder)
    assert opened.console == []
    assert opened.requests == []
    assert opened.screenshot.stat().st_size > 10_000
    traces = [trace["type"] for chart in charts.values() for trace in chart["traces"]]
    assert opened.count("plot-container") == len(charts)
    assert opened.count("trace scatter") == traces.count("scatter")
    assert opened.count("trace bars") == traces.count("bar")
    return opened


def test_what_a_page_loads_and_what_fails_in_it_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<img src="https://example.org/a.png"><script>nothing_of_this_name()</script>')
    opened = open_page(page, "control", tmp_path)
    assert opened.requests == ["https://example.org/a.png"]
    assert "nothing_of_this_name is not defined" in opened.console[0]


def test_the_report_of_a_job_that_lost_a_worker_and_failed_with_names_that_are_html(
    tmp_path: Path,
) -> None:
    folder, tasks = tmp_path / "night-1", ["worker-0", "worker-1"]
    write_manifest(folder, tasks, attempt=2)
    lost = {"state": "failed", "message": "worker-2 on node-3 was unreachable for 60 s"}
    write_attempt(folder / "attempts/1", [*tasks, "worker-2"], range(1, 60), lost)
    evil = '<img src="https://example.org/x.png" onerror="nothing_of_this_name()">'
    failed = {"state": "failed", "message": f"worker-1: {evil}", "root_cause": "worker-1"}
    write_attempt(folder, tasks, range(40, 90), failed, BEGAN + 60)
    with (folder / "progress/worker-1.jsonl").open("a") as stream:
        stream.write(json.dumps({"t": BEGAN + 70, "step": 90, "metrics": {evil: 1.0}}) + "\n")
    titles = {"loss", evil, "Time per step", "Activity of each rank", "Busy GPUs, %"}
    opened = check(report.write_report(folder), "report", tmp_path, titles)
    assert "last line of worker-1" in opened.html
    assert opened.count("legendtext") > 0
    assert ">attempt 2<" in opened.html


def test_the_comparison_of_two_jobs(tmp_path: Path) -> None:
    for name, seed, steps in (("one", 7, 90), ("two", 8, 60)):
        write_manifest(tmp_path / name, ["worker-0"], seed=seed)
        write_attempt(tmp_path / name, ["worker-0"], range(1, steps), COMPLETED)
    found = report.compare_jobs(tmp_path / "one", tmp_path / "two")
    page = report.write_comparison(found, tmp_path / "compare.html")
    opened = check(page, "compare", tmp_path, {"loss", "accuracy over time"})
    assert "<td>seed</td><td>7</td><td>8</td>" in opened.html


@pytest.fixture
def site() -> Path:
    """Return the start page of the documentation, built again if a page is newer."""
    start = CACHE / "site/site/index.html"
    listed = subprocess.check_output(["git", "ls-files", "*.md", "docs"], cwd=REPOSITORY, text=True)
    newest = max((REPOSITORY / name).stat().st_mtime for name in listed.splitlines())
    if not start.is_file() or start.stat().st_mtime < newest:
        done = run("make", "docs")
        assert done.returncode == 0, done.stderr[-3000:]
    return start


def test_the_start_page_of_the_documentation(site: Path, tmp_path: Path) -> None:
    opened = open_page(site, "site", tmp_path)
    assert opened.console == []
    assert opened.requests == []
    assert opened.screenshot.stat().st_size > 10_000
    assert "<h1" in opened.html
    assert "Quick start" in opened.html


#: Runs without TensorFlow, whose import takes seconds.
EVENTS = """
import sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
with open(sys.argv[1], "wb") as stream:
    for step in range(20):
        value = Summary.Value(tag="falling", simple_value=1 / (step + 1))
        event = Event(wall_time=step, step=step, summary=Summary(value=[value]))
        RecordWriter(stream).write(event.SerializeToString())
"""


def check_that_others_see_nothing(url: str, pid: int) -> None:
    """Assert that TensorBoard, a child of ``pid``, only answers under its secret address."""
    begin, secret = url.rstrip("/").rsplit("/", 1)
    with urlopen(f"{url}data/runs") as answer:
        assert json.load(answer) == ["night/tensorboard"]
    for path in ("", "data/runs", f"{secret[:-1]}/data/runs", "../data/runs"):
        with pytest.raises(HTTPError) as refused:
            urlopen(f"{begin}/{path}")
        assert refused.value.code == 404
        refused.value.close()
    (board,) = processes.descendants([pid], processes.snapshot())
    assert secret not in processes.command(board)
    sockets = set(re.findall(r"socket:\[(\d+)\]", " ".join(processes.opened(board))))
    tables = processes.read_text("/proc/net/tcp") + processes.read_text("/proc/net/tcp6")
    rows = [line.split() for line in tables.splitlines()]
    listening = [row[1] for row in rows if row[9] in sockets and row[3] == "0A"]
    assert [address.rpartition(":")[0] for address in listening] == ["0100007F"]
    written = processes.environment(board)["TMPDIR"]
    assert Path(written).stat().st_mode & 0o777 == 0o700
    assert list(Path(written).rglob("*.info")), "that file holds the address"


@pytest.mark.soak
@pytest.mark.tensorflow
def test_tensorboard_of_what_was_fetched(tf_python: str, tmp_path: Path) -> None:
    events = tmp_path / "runs/night/tensorboard/events.out.tfevents.1.host"
    events.parent.mkdir(parents=True)
    done = run(tf_python, "-c", EVENTS, str(events))
    assert done.returncode == 0, done.stderr
    given = json.dumps({"train_job_runs_dir": str(tmp_path / "runs")})
    port = free_port()
    words = ["tensorboard", "--here", "night", "--port", str(port), "-e", given]
    command = [sys.executable, "-m", "train", *words]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as board:
        assert board.stdout is not None
        try:
            url = board.stdout.readline().split()[3]
            check_that_others_see_nothing(url, board.pid)
            opened = open_page(url, "tensorboard", tmp_path)
        finally:
            board.terminate()
    assert board.returncode == 0
    assert "falling" in opened.html
    assert {urlsplit(address).netloc for address in opened.requests} == {f"127.0.0.1:{port}"}
    assert opened.screenshot.stat().st_size > 10_000
