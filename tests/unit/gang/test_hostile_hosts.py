"""A host that sends false reports cannot harm the control node."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.gang.hostile import (
    ATTEMPT,
    CASES,
    FILE,
    INVENTORY,
    LISTED,
    OSC,
    SEEN,
    STOP_REPORT,
    UPDATE,
    a_manifest,
    archive_of,
    snapshot,
)
from train.gang import listing, reports
from train.gang.errors import UnreachableError, UserError
from train.gang.plan import reattach, script_files
from train.gang.plan.renaming import Inventory
from train.gang.watch import follow, polling, verdict
from train.gang.watch.views import Target
from train.host import rank_files, records

PATHS = ["", "..", "../../x", "/etc/passwd", "~/.bashrc"]
NASTY = st.sampled_from([*PATHS, "{{ 1 + 1 }}", OSC, "\u202e", "\x00", "a" * 9000])
TEXTS = NASTY | st.text(max_size=20)
NUMBERS = st.integers() | st.floats() | st.just(10**400) | st.just(-1)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def mutated(valid: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return values that are valid except for some fields, at any depth, or are arbitrary."""

    @st.composite
    def changed(draw: st.DrawFn) -> Any:
        value = json.loads(json.dumps(valid))
        for _ in range(draw(st.integers(1, 3))):
            place: Any = value
            while place:
                keys = list(place) if isinstance(place, dict) else list(range(len(place)))
                key = draw(st.sampled_from(keys))
                if isinstance(place[key], (dict, list)) and place[key] and draw(st.booleans()):
                    place = place[key]
                    continue
                if isinstance(place, dict) and draw(st.booleans()):
                    del place[key]
                else:
                    place[key] = draw(JSON)
                break
        return value

    return changed() | JSON


def is_harmless(value: Any) -> bool:
    if isinstance(value, dict):
        return is_harmless([*value.items()])
    if isinstance(value, (list, tuple)):
        return all(map(is_harmless, value))
    return not (isinstance(value, str) and CONTROL.search(value))


def code_archive(folder: Path, marker: Path) -> tuple[Path, str]:
    """Write the code of a job: a module with a name that every Python program imports."""
    evil = folder / "argparse.py"
    evil.write_text(f"open({str(marker)!r}, 'w').write('executed')\n")
    archive = folder / rank_files.ARCHIVE_FILE
    return archive, script_files.pack([(evil, "argparse.py")], archive)


def test_code_from_a_host_is_used_only_if_it_is_what_was_sent(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    archive, sha256 = code_archive(tmp_path, marker)
    tf_config = {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}
    with pytest.raises(UserError, match="differs from the code that the job was started with"):
        script_files.check_archive(archive, "0" * 64)
    script_files.check_archive(archive, sha256)
    manifest: Any = {"script": str(script_files.WORKER), "arguments": []}
    script_files.check_arguments(manifest, archive, {"a": tf_config})
    archive.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(UserError, match="remove this file and attach to the job again"):
        script_files.check_archive(archive, sha256)
    assert not marker.exists()


def test_what_was_sent_is_fetched_from_the_first_host_that_has_it(tmp_path: Path) -> None:
    sent, sha256 = code_archive(tmp_path, tmp_path / "marker")
    forged = archive_of(tmp_path / "forged", [("code/argparse.py", FILE, b"evil")])
    here = tmp_path / "runs" / rank_files.ARCHIVE_FILE
    here.parent.mkdir()
    why = "code.tar.gz was not fetched from "

    def fetch(**hosts: Path | Exception) -> list[str]:
        def send(host: str, source: str, destination: Path, limit: int) -> None:
            sent = hosts[host]
            if isinstance(sent, Exception):
                raise sent
            shutil.copyfile(sent, destination)

        play: Any = SimpleNamespace(fetch=send)
        return reattach.fetch_archive(play, dict.fromkeys(hosts, "/jobs"), here, sha256, 99)

    told = fetch(a=forged, b=OSError(f"gone{OSC}"), c=UnreachableError("no route"))
    assert told[0] == f"{why}a: the archive differs from the code that the job was started with"
    assert told[1].startswith(f"{why}b: gone")
    assert is_harmless(told)
    assert "cannot be restarted from here" in told[3]
    assert list(here.parent.iterdir()) == []
    assert fetch(a=forged, b=sent, c=OSError("not asked")) == []
    assert list(here.parent.iterdir()) == [here]
    assert here.read_bytes() == sent.read_bytes()


def choose(kept: dict[str, Any], own: Any = None) -> tuple[Any, list[str]]:
    return reattach.choose(kept, own, "night", Inventory(INVENTORY, {}, {}))


def test_a_job_is_what_this_control_node_started_whatever_hosts_say() -> None:
    forged = a_manifest(7, entry="evil.py", code_sha256="b" * 64)
    chosen, warnings = choose({"node-0": a_manifest(), "node-1": forged}, a_manifest())
    assert chosen == a_manifest()
    assert warnings == [
        "ignoring the record of job night on node-1: it is another job with the same id"
    ]


def test_without_knowing_the_job_all_hosts_must_agree() -> None:
    chosen, _ = choose(dict.fromkeys(INVENTORY, a_manifest(2)))
    assert chosen["attempt"] == 2
    told = {"node-0": a_manifest(), "node-1": a_manifest(arguments=["--evil"])}
    with pytest.raises(UserError, match=r"have different records of job night \(node-0, node-1\)"):
        choose(told)


def test_one_host_alone_makes_no_new_attempt() -> None:
    told = {"node-0": a_manifest(2), "node-1": a_manifest(9)}
    chosen, _ = choose(told, a_manifest(2))
    assert chosen["attempt"] == 2
    moved = a_manifest(3, ranks=[{**a_manifest()["ranks"][0], "results_dir": "worker-1"}])
    chosen, _ = choose({"node-0": moved}, a_manifest(2))
    assert chosen["attempt"] == 3  # this host is the only one of the job there


def test_an_attempt_was_staged_if_a_host_has_it_and_its_hosts_are_those_planned_here() -> None:
    def planned(attempt: int, **changed: Any) -> Any:
        known: Any = {**ATTEMPT, "ranks": {}}
        attempts = [{**known, "attempt": n + 1, "claim": f"c{n}"} for n in range(attempt)]
        attempts[-1]["staged"] = False
        return a_manifest(attempt, attempts=attempts, **changed)

    own = planned(2)
    chosen, _ = choose({"node-0": planned(1)}, own)
    assert id(chosen) == id(own)
    assert records.restarts_made(own) == 0
    told = {"node-0": planned(2, hosts={"node-1": {"host_python": "/tmp/evil"}})}
    chosen, _ = choose(told, own)
    assert (chosen["hosts"], records.restarts_made(chosen)) == ({}, 1)


@pytest.mark.parametrize(
    "changed",
    [
        {"attempts": []},
        {"entry": "-c"},
        {"entry": "../x.py"},
        {"job": "other"},
        {"ranks": []},
        {"ranks": [{**a_manifest()["ranks"][0], "task": "../../x"}]},
        {"ranks": [{**a_manifest()["ranks"][0], "results_dir": "/etc"}]},
        {"ranks": [{**a_manifest()["ranks"][0], "host": "stranger"}]},
        {"ranks": [{**a_manifest()["ranks"][0], "task": "worker-3"}]},
        {"cluster": {"worker": ["node-0", "node-1:12345"]}},
        {"cluster": {"worker": ["node-0:", "node-1:12345"]}},
        {"attempts": [{**ATTEMPT, "attempt": 10**9, "ranks": {}}]},
    ],
)
def test_a_forged_manifest_is_passed_over(changed: dict[str, Any]) -> None:
    chosen, warnings = choose({"node-0": a_manifest(**changed)})
    assert chosen is None
    assert len(warnings) == 1


def test_null_in_a_field_that_older_versions_lack_is_left_out() -> None:
    names = ("module", "rank_arguments", "framework", "cluster")
    missing: dict[str, Any] = dict.fromkeys(names)
    chosen, warnings = choose(dict.fromkeys(INVENTORY, a_manifest(**missing)))
    assert warnings == []
    assert not {*names} & chosen.keys()


@CASES
@given(forged=mutated(a_manifest(3)))
def test_no_forged_manifest_changes_what_is_run(forged: Any) -> None:
    own = a_manifest()
    told = {"node-0": a_manifest(), "node-1": forged}
    chosen, warnings = choose(told, own)
    for name in ("entry", "arguments", "script", "code_sha256", "policy", "created_at"):
        assert chosen[name] == own[name]
    assert is_harmless([chosen["ranks"], warnings])
    assert {rank["host"] for rank in chosen["ranks"]} <= set(INVENTORY)


@CASES
@given(
    listed=mutated({"jobs": [LISTED]}),
    state=mutated(SEEN),
    stopped=mutated({"stop_report": STOP_REPORT}),
)
def test_no_answer_of_a_host_breaks_a_command(listed: Any, state: Any, stopped: Any) -> None:
    with contextlib.suppress(reports.ReportError):
        jobs = listed.get("jobs") if isinstance(listed, dict) else listed
        own, (others, _) = [LISTED], reports.listing(jobs)
        told = {"node-0": own, "node-1": others}
        merged = listing.merge(told)
        assert "night" in {job["job"] for job in merged}
        shown = [[listing.line_of(job), listing.public(job)] for job in merged]
        assert is_harmless(shown)
        json.dumps(shown)
    for check, value in ((reports.all_seen, state), (reports.stop_reports, stopped)):
        with contextlib.suppress(reports.ReportError):
            assert is_harmless(check(value))
    assert is_harmless(reports.bounded(state))


@CASES
@given(lies=st.lists(mutated(UPDATE), min_size=1, max_size=4), line=TEXTS | JSON.map(repr))
def test_no_update_of_a_host_breaks_the_watch_or_leaves_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lies: list[Any], line: str
) -> None:
    monkeypatch.setattr(verdict, "ROOT_CAUSE_WAIT", 0.0)
    monkeypatch.setattr(polling, "_BACKOFF", 0.001)
    monkeypatch.setattr(polling.Ranks, "longest_backoff", 0.001)
    monkeypatch.setattr(follow, "WAIT", 0.05)
    left, lock = iter(lies), threading.Lock()
    end = {**UPDATE, "state": {"phase": "completed"}, "progress": "", "log": ""}

    def poll(target: Target, cursors: dict[str, Any], *rest: Any) -> Any:
        ((rank_dir, cursor),) = cursors.items()
        if target.task == "worker-1":  # the honest host
            return {rank_dir: {**end, "cursor": {**cursor, "phase": "completed"}}}
        with lock:
            told = next(left, None)
        if told is None:
            told = {**end, "progress": f"{line}\n", "now": time.time()}
            told["cursor"] = {**cursor, "phase": "completed"}
        return {rank_dir: told}

    said: list[str] = []
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        targets = [
            Target(f"node-{n}", f"worker-{n}", f"/jobs/worker-{n}", "python3", f"place-{n}", False)
            for n in range(2)
        ]
        run_dir = Path(folder, "runs", "job")
        limits = polling.Limits(5, 5, 0, log_limit=1 << 28, straggler_factor=1.5)
        probe: Any = None  # not used without addresses
        gang = follow.FollowedGang(targets, run_dir, poll, said.append, limits, {}, probe, "")
        outcome = gang.follow()
        os.close(gang._lock)
        assert outcome.state in ("completed", "failed", "stopped")
        allowed = r"runs|runs/job(/\w+)?(/\.?worker-[01]\.\S+|/events\.jsonl|/\.followed)?"
        assert all(re.fullmatch(allowed, name) for name in snapshot(Path(folder)))
        events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
        assert is_harmless([said, outcome.message, events])
