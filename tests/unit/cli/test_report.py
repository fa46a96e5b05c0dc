"""The page about a job, made from the files in its folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.run_folders import BEGAN, charts_of, write_attempt, write_manifest
from train.cli import report
from train.cli.main import main


def words_of(page: str) -> str:
    return re.sub(r"<script>.*?</script>|<[^>]*>", "", page, flags=re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "night-1"


COMPLETED = {"state": "completed", "message": "all"}


def test_a_failed_job_is_shown_with_its_root_cause_and_log(folder: Path) -> None:
    tasks = ["worker-0", "worker-1"]
    write_manifest(folder, tasks)
    message = "worker-1 on node-2 exited with code 1: ValueError\nwhat to do: fix the script"
    failed = {"state": "failed", "message": message, "root_cause": "worker-1"}
    write_attempt(folder, tasks, range(1, 4), failed)
    page = report.write_report(folder).read_text()
    text = words_of(page)
    assert message in text
    opened = re.findall(r"<details open><summary>(.*?)</summary><pre>(.*?)</pre>", page, re.DOTALL)
    assert opened == [("worker-1", "20%\nlast line of worker-1")]
    assert "10%" not in text
    assert "/home/me/main.py --epochs 5" in text
    assert "abc123, with uncommitted changes" in text
    charts = charts_of(page)
    loss = charts["loss"]["traces"]
    assert [trace["name"] for trace in loss] == tasks
    assert (loss[0]["x"], loss[0]["y"]) == ([1, 2, 3], [1 / 2, 1 / 3, 1 / 4])
    phases = [trace["name"] for trace in charts["Activity of each rank"]["traces"]]
    assert phases == ["loading", "training", "failed"]
    for title, name, value in (
        ("Cores used by each rank", "worker-0", 1.5),
        ("Busy cores of each rank's host, %", "worker-0", 50.0),
        ("Busy GPUs, %", "worker-0, GPU 1", 80),
    ):
        trace = charts[title]["traces"][0]
        assert (trace["name"], trace["x"], trace["y"]) == (name, [5.0, 10.0], [value, value])
    compute = charts["Time per step"]["traces"][0]
    assert (compute["name"], compute["x"]) == ("compute", [4.0, 4.0])


def test_a_phase_lasts_until_the_next_one(folder: Path) -> None:
    write_manifest(folder, ["worker-0"])
    write_attempt(folder, ["worker-0"], range(3), None)
    written = [
        *({"t": 1.0, "phase": "loading"}, {"t": 2.0}, {"t": 3.0, "phase": "training", "step": 1}),
        *({"t": 4.0, "step": 2}, {"t": 5.0, "phase": "evaluating"}, {"t": 6.0}, {"t": 7.0}),
    ]
    records = "".join(f"{json.dumps(record)}\n" for record in written)
    (folder / "progress/worker-0.jsonl").write_text(records)
    chart = charts_of(report.write_report(folder).read_text())["Activity of each rank"]
    lengths = {trace["name"]: trace["x"] for trace in chart["traces"]}
    assert lengths == {"loading": [2.0], "training": [2.0], "evaluating": [2.0]}


def test_a_restarted_job_with_fewer_workers_shows_each_attempt(folder: Path) -> None:
    write_manifest(folder, ["worker-0"], attempt=2)
    lost = {"state": "failed", "message": "worker-1 on node-2 was unreachable for 60 s"}
    write_attempt(folder / "attempts/1", ["worker-0", "worker-1"], range(1, 6), lost)
    write_attempt(folder, ["worker-0"], range(4, 9), COMPLETED, BEGAN + 60)
    page = report.write_report(folder).read_text()
    text = words_of(page)
    assert "2 attempts" in text
    assert "worker-1 on node-2 was unreachable for 60 s" in text
    assert re.search(r"1 to 5.*4 to 8", text, re.DOTALL)
    charts = charts_of(page)
    loss = charts["loss"]["traces"]
    assert [trace["name"] for trace in loss] == ["attempt 1", "attempt 1", "attempt 2"]
    assert [trace["showlegend"] for trace in loss] == [True, False, True]
    assert len({trace["line"]["color"] for trace in loss}) == 2
    assert loss[1]["hovertemplate"].startswith("worker-1, attempt 1: ")
    timeline = charts["Activity of each rank"]["layout"]
    assert timeline["yaxis"]["categoryarray"] == ["worker-0", "worker-1"]
    assert [(line["text"], line["x"]) for line in timeline["annotations"]] == [("attempt 2", 60.0)]


@pytest.mark.parametrize("state", [None, "stopped"])
def test_a_job_without_a_result_or_progress_is_shown(folder: Path, state: str | None) -> None:
    write_manifest(folder, ["worker-0"], git=None)
    if state:
        write_attempt(folder, [], range(0), {"state": state, "message": "stopped by anna"})
    text = words_of(report.write_report(folder).read_text())
    assert ("stopped by anna" if state else "no result yet") in text
    assert "No rank has reported progress." in text


def test_what_a_host_reported_is_text_and_nothing_else(folder: Path) -> None:
    write_manifest(folder, ["worker-0"])
    evil = "</script><script>alert(1)</script>"
    write_attempt(folder, ["worker-0"], range(3), {"state": "failed", "message": evil})
    (folder / "logs/worker-0.log").write_bytes(evil.encode() + b"\x1b]0;title\x07\xff\n")
    record = {"t": BEGAN, "step": 1, "metrics": {evil: 1.0}, "loss": float("nan")}
    lines = [json.dumps(record), "no record", '{"t": Infinity, "step": 2}\n']
    (folder / "progress/worker-0.jsonl").write_text("\n".join(lines))
    page = report.write_report(folder).read_text()
    assert evil not in page
    assert "\x1b" not in page
    assert evil in charts_of(page)


def test_thirty_two_ranks_and_three_attempts_stay_below_6_mb(folder: Path) -> None:
    tasks = [f"worker-{index}" for index in range(32)]
    write_manifest(folder, tasks, attempt=3)
    for place in (folder / "attempts/1", folder / "attempts/2", folder):
        write_attempt(place, tasks, range(0, 3000, 10), COMPLETED)
    path = report.write_report(folder)
    assert path.stat().st_size < 6_000_000  # 6.5 without thinning
    curves = charts_of(path.read_text())["loss"]["traces"]
    assert len(curves) == 96
    assert {curve["x"][-1] for curve in curves} == {2990}


def shown_by(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(words)
    return code, "".join(capsys.readouterr())


def test_report_of_a_job_and_of_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_manifest(tmp_path / "early", ["worker-0"])
    runs = ["-e", f"train_job_runs_dir={tmp_path}"]
    assert shown_by(capsys, "report", "early", *runs) == (0, f"{tmp_path}/early/report.html\n")
    code, missing = shown_by(capsys, "report", "late", *runs)
    assert code == 2
    assert "job late is not known on this control node: attach to it first with `" in missing


def test_compare_prints_what_a_person_can_act_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("-e", f"train_job_runs_dir={tmp_path}")
    git = {"commit": "abc", "dirty": False}
    hosts = [{"task": f"worker-{n}", "host": f"n{n}", "port": 1000 + n} for n in range(5)]
    changes: dict[str, dict[str, Any]] = {"one": {"git": None}, "two": {"git": git}}
    for name, more in changes.items():
        write_manifest(tmp_path / name, ["worker-0"], **more)
        write_attempt(tmp_path / name, ["worker-0"], range(1, 6), COMPLETED)
    write_manifest(tmp_path / "two", ["worker-0"], git=git, ranks=hosts)
    path = tmp_path / "two/progress/worker-0.jsonl"
    path.write_text(path.read_text().replace('"accuracy": 0.', '"accuracy": 0.0'))
    _, shown = shown_by(capsys, "compare", "one", "two", *where)
    assert "git.commit: - | abc\n" in shown
    assert "None" not in shown
    assert "ranks." not in shown
    assert "| 5 ranks on n0, n1, n2 and 2 more\n" in shown
    assert len([line for line in shown.splitlines() if line.startswith("  hosts: ")]) == 1
    assert "reached 0.825: after 1.5 s | never" in shown
    assert "use --all to show them" in shown
    _, everything = shown_by(capsys, "compare", "one", "two", *where, "--all")
    assert "ranks.worker-4.port: - | 1004\n" in everything


def test_two_jobs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("-e", f"train_job_runs_dir={tmp_path}")
    changes: dict[str, dict[str, Any]] = {"one": {}, "two": {"arguments": ["--epochs", "9"]}}
    for name, more in changes.items():
        write_manifest(tmp_path / name, ["worker-0"], **more)
        write_attempt(tmp_path / name, ["worker-0"], range(1, 6), COMPLETED)
    path = tmp_path / "two/progress/worker-0.jsonl"
    assert '"step": 3, "loss": 0.25' in path.read_text()
    path.write_text(path.read_text().replace('"step": 3, "loss": 0.25', '"step": 3, "loss": 2.0'))
    _, shown = shown_by(capsys, "compare", "one", "two", *where)
    assert "arguments: --epochs 5 | --epochs 9\n" in shown
    assert "script" not in shown
    assert "loss: differs from step 3 on: 0.25 | 2.0" in shown
    assert "accuracy: 0.8333 | 0.8333 at the end; reached 0.825: after 1.5 s | after 1.5 s" in shown
    _, same = shown_by(capsys, "compare", "one", "one", *where)
    assert "same script, arguments, code, versions and hosts" in same
    assert "loss: identical at all 5 steps" in same
    html = ("compare", "one", "two", *where, "--html")
    assert shown_by(capsys, *html) == (0, f"{tmp_path}/one/compare-two.html\n")
    other = tmp_path / "mine.html"
    assert shown_by(capsys, *html, str(other)) == (0, f"{other}\n")
    refused = f"python -m train compare: {tmp_path}: is a folder: pass the path of a file\n"
    assert shown_by(capsys, *html, str(tmp_path)) == (2, refused)
    page = other.read_text()
    assert "loss: differs from step 3" in words_of(page)
    assert "<td>arguments</td><td>--epochs 5</td><td>--epochs 9</td>" in page
    charts = charts_of(page)
    assert [trace["name"] for trace in charts["loss"]["traces"]] == ["one", "two"]
    assert charts["loss"]["layout"]["shapes"][0]["x0"] == 3
    over_time = charts["accuracy over time"]
    assert over_time["traces"][0]["x"] == pytest.approx([1.1, 1.2, 1.3, 1.4, 1.5])
    assert over_time["layout"]["annotations"][0]["text"] == "0.825"


def test_of_much_progress_a_page_has_a_part_and_the_last_record(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "worker-0.jsonl"
    folder.mkdir()
    path.write_text("".join(f'{{"step": {step}}}\n' for step in range(1000)))
    assert len(report._read_progress(path)) == 1000
    monkeypatch.setattr(report, "_MAX_PROGRESS", 1000)
    found = report._read_progress(path)
    assert 50 < len(found) < 100
    assert found[-1]["step"] == 999


def test_times_of_records_without_a_time_are_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("-e", f"train_job_runs_dir={tmp_path}")
    for name in ("one", "two", "three"):
        write_manifest(tmp_path / name, ["worker-0"])
        write_attempt(tmp_path / name, ["worker-0"], range(1, 6), COMPLETED)
    path = tmp_path / "two/progress/worker-0.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    without = [{name: v for name, v in record.items() if name != "t"} for record in records]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in without))
    mixed = "".join(f"{json.dumps(record)}\n" for record in [without[0], *records[1:]])
    (tmp_path / "three/progress/worker-0.jsonl").write_text(mixed)
    _, shown = shown_by(capsys, "compare", "one", "two", *where)
    assert "loss: identical at all 5 steps" in shown
    assert "reached 0.825: after 1.5 s | unknown\n" in shown
    code, shown = shown_by(capsys, "compare", "one", "two", *where, "--html")
    assert code == 0, shown
    page = (tmp_path / "one/compare-two.html").read_text()
    assert "unknown" in words_of(page)
    assert [trace["name"] for trace in charts_of(page)["accuracy over time"]["traces"]] == ["one"]
    _, shown = shown_by(capsys, "compare", "one", "three", *where)
    assert "reached 0.825: after 1.5 s | after 0.4 s\n" in shown  # since the first known time
