"""A host that sends false reports cannot harm the control node."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import shutil
import string
import tarfile
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from train.gang import archives, connections, listing, reports
from train.gang.errors import UnreachableError, UserError
from train.gang.plan import reattach, script_files
from train.gang.plan.planned_ranks import keep_checkpoints, plan_ranks
from train.gang.plan.renaming import Inventory
from train.gang.watch import follow, polling, verdict
from train.gang.watch.views import Target
from train.host import rank_files, records

#: Number of examples of each of the four tests that generate cases: 500 in all.
CASES = settings(
    max_examples=int(os.environ.get("HOSTILE_CASES", "125")),
    deadline=None,
    derandomize=True,  # the same examples each time, so failures can be reproduced
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
OSC = "\x1b]52;c;ZXZpbA==\x07"
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


def snapshot(folder: Path) -> dict[str, tuple[int, str]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        content = path.read_text(errors="replace") if path.is_file() else str(path.is_symlink())
        found[str(path.relative_to(folder))] = (about.st_mode, content)
    return found


def archive_of(path: Path, members: Sequence[tuple[Any, ...]]) -> Path:
    """Write an archive of members: name, type, and content, target of a link or claimed size."""
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, kind, what in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, what if isinstance(what, str) else ""
            content = what if isinstance(what, bytes) else b""
            info.size = what if isinstance(what, int) else len(content)
            tar.addfile(info, io.BytesIO(content) if content else None)
    return path


FILE, LINK, DIR = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE


@pytest.mark.parametrize(
    ("members", "why"),
    [
        # The first three were exploits: variables with a template that ran, and a log to append to.
        ([("variables.json", FILE, b"{}")], "variables.json, which is not in model or tensorboard"),
        ([("logs/chief-0.log", LINK, "/root/.bashrc")], "is not in model or tensorboard"),
        ([("model", LINK, "/tmp"), ("model/x", FILE, b"")], "neither a folder nor a file"),
        ([("model/../../x", FILE, b"x")], "is not in model or tensorboard"),
        ([("/model/x", FILE, b"x")], "is not in model or tensorboard"),
        ([("model", FILE, b"x")], "model, which is neither a folder nor a file"),
        ([("model/pipe", tarfile.FIFOTYPE, b"")], "neither a folder nor a file inside one"),
        ([("model/hard", tarfile.LNKTYPE, "../x")], "neither a folder nor a file inside one"),
        ([("model/large", FILE, b"x" * 3000)], "train_job_results_limit_mb"),
        ([("model/huge", FILE, 1 << 50)], "train_job_results_limit_mb"),
        ([(f"model/{n}", FILE, b"") for n in range(20)], "train_job_results_limit_files"),
        ([(f"model/a{OSC}b", FILE, b""), ("x", FILE, b"")], "x, which is not in model"),
    ],
)
def test_an_archive_that_escapes_is_refused(tmp_path: Path, members: list[Any], why: str) -> None:
    run_dir = tmp_path / "runs" / "job"
    (run_dir / "model").mkdir(parents=True)
    (run_dir / "model" / "earlier").write_text("kept")
    archive = archive_of(tmp_path / "results.tar.gz", members)
    before = snapshot(tmp_path)
    with pytest.raises(archives.ArchiveError, match=re.escape(why)):
        archives.unpack(archive, run_dir, ("model", "tensorboard"), 2000, 10)
    assert snapshot(tmp_path) == before


def test_an_archive_of_results_takes_the_place_of_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "earlier").write_text("gone")
    (tmp_path / "tensorboard").symlink_to("/tmp")
    members = [("model", DIR, b""), ("model/a/b", FILE, b"new"), ("tensorboard/events", FILE, b"e")]
    archive = archive_of(tmp_path / "results.tar.gz", members)
    archives.unpack(archive, tmp_path, ("model", "tensorboard"), 2000, 10)
    archive.unlink()
    assert [name for name in snapshot(tmp_path) if "." not in name] == [
        *("model", "model/a", "model/a/b", "tensorboard", "tensorboard/events")
    ]
    assert not (tmp_path / "tensorboard").is_symlink()


INSIDE = ["model", "model/a", "model/a/c", "tensorboard/b"]
NAMES = [*INSIDE, "model/../x", "/x", "../x", "logs/a", "./model/a"]
LINKS = ["/etc/passwd", "..", "../../outside", "model/a"]
KINDS = [FILE, FILE, DIR, LINK, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
MEMBERS = st.lists(
    st.tuples(
        st.sampled_from(NAMES) | st.text(string.printable, max_size=12),
        st.sampled_from(KINDS),
        st.sampled_from(LINKS) | st.binary(max_size=50) | st.integers(0, 1 << 40),
    ),
    max_size=6,
)


@CASES
@given(members=MEMBERS, cut=st.none() | st.integers(0, 200), noise=st.binary(max_size=4))
def test_no_archive_writes_outside_of_its_folders(
    tmp_path: Path, members: list[Any], cut: int | None, noise: bytes
) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        run_dir = Path(folder, "runs", "job")
        run_dir.mkdir(parents=True)
        Path(folder, "outside").write_text("untouched")
        archive = Path(folder, "results.tar.gz")
        try:
            archive_of(archive, members)
        except (tarfile.TarError, ValueError, OSError):
            return  # Python cannot write such an archive
        data = archive.read_bytes()
        archive.write_bytes(data if cut is None else data[:cut] + noise + data[cut + len(noise) :])
        with contextlib.suppress(archives.ArchiveError):
            archives.unpack(archive, run_dir, ("model", "tensorboard"), 10_000, 20)
        changed = set(snapshot(Path(folder))) - {"runs", "runs/job", "outside", "results.tar.gz"}
        assert all(re.match("runs/job/(model|tensorboard)(/|$)", name) for name in changed)
        assert Path(folder, "outside").read_text() == "untouched"
        assert not any(path.is_symlink() for path in Path(folder).rglob("*"))


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


INVENTORY = ("node-0", "node-1")
ENVIRONMENT = {
    **{"root": "/home/u/train", "variant": "cpu", "python_series": "3.11", "lock_sha256": "0"},
    "package_environments": ["packages-0123456789ab"],
}
FACTS: Any = {
    **{"machine": "m", "address": "10.0.0.1", "cores": 8, "memory_mb": 9, "port": 12345},
    **{"root": "~/train", "python": "/opt/tf/bin/python", "host_python": "python3"},
    **{"lease_dir": "/tmp/leases", "tensorflow": None, "gpus_wanted": None},
    **{"environment": ENVIRONMENT, "missing_modules": ["pandas"]},
    "gpus": [{"index": 0, "uuid": "GPU-1", "instances": ["MIG-1"]}],
    "gpus_busy": {"GPU-1": {"why": "in use", "remedy": "wait", "waits": True}},
}


ATTEMPT = {"planned_at": 1.5, "claim": "c0de", "staged": True, "left_out": {}}


def a_manifest(attempt: int = 1, **changed: Any) -> Any:
    hosts: Any = {name: {**FACTS, "machine": name, "address": name} for name in INVENTORY}
    ranks = plan_ranks({"worker": INVENTORY}, hosts)
    keep_checkpoints(ranks, hosts, {}, False)
    tasks = {rank["task"]: rank["host"] for rank in ranks}
    cluster = {"cluster": {"worker": ["node-0:12345", "node-1:12345"]}}
    return {
        "version": 1,
        "job": "night",
        "created_at": 1795244560.125,
        "script": "/home/me/main.py",
        "entry": "main.py",
        "arguments": ["--epochs", "5"],
        "code_sha256": "a" * 64,
        "attempt": attempt,
        "attempts": [{**ATTEMPT, "attempt": n + 1, "ranks": tasks} for n in range(attempt)],
        "results_dirs": {rank["host"]: rank["results_dir"] for rank in ranks},
        "ranks": ranks,
        "hosts": {},
        "policy": {"max_restarts": 3, "restart_delay": 1, "min_workers": 0, "host_wait": 60},
        "tf_config": dict.fromkeys(tasks, cluster),
        **changed,
    }


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
        {"attempts": [{**ATTEMPT, "attempt": 10**9, "ranks": {}}]},
    ],
)
def test_a_forged_manifest_is_passed_over(changed: dict[str, Any]) -> None:
    chosen, warnings = choose({"node-0": a_manifest(**changed)})
    assert chosen is None
    assert len(warnings) == 1


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


# ------------------------------------------------------------------------------------- reports
RANK = {
    **{"job": "night", "task": "worker-0", "attempt": 1, "port": 12345, "non_training": False},
    **dict.fromkeys(("rank_dir", "results_dir"), "/home/me/train/jobs/night/worker-0"),
    **{"host_python": "/usr/bin/python3", "place": "here"},
}
LISTED: Any = {
    "job": "night",
    "size": 1000,
    "manifest": {
        **{"attempt": 1, "created_at": 1.0, "restarts": 0},
        **{"tasks": {"worker-0": "node-0"}, "hosts": ["node-0"]},
    },
    "ranks": [
        {
            **{**RANK, "host": "node-0", "key": "x:1:2", "phase": "running", "reason": ""},
            **{"started_at": 1.0, "ended_at": None, "idle": 1.0, "processes": 1},
            **{"progress": {"step": 1}, "log_from": 0},
        }
    ],
}
STATE = {"phase": "running", "attempt": 1, "pid": 4711, "port": 12345, "running_at": 1.0}
SEEN = {"rank": RANK, "state": STATE, "last_line": "x", "progress": {"step": 3}}
STOP_REPORT: dict[str, Any] = {
    "was": "running",
    "phase": "stopped",
    "ended": 1,
    "remaining": [],
    "port": 1,
}
STOP_REPORT["given_back"] = 0


def test_what_is_right_passes() -> None:
    assert reports.rank(RANK) == RANK
    assert reports.facts(FACTS) == FACTS
    assert reports.listing([LISTED]) == ([LISTED], [])
    # A malformed job does not hide the others.
    assert reports.listing([{**LISTED, "job": "a", "size": "x"}, LISTED]) == (
        [LISTED],
        ["job 'a' size is not an integer from 0 to 9007199254740992"],
    )
    (seen, more) = reports.all_seen({**SEEN, "more": [SEEN]})
    assert seen["state"] == more["state"] == STATE
    (report,) = reports.stop_reports({"stop_report": STOP_REPORT})
    assert report["ended"] == 1


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"port": 70_000}, "port is not an integer from 1 to 65535"),
        ({"python": "train"}, "python is not an absolute path"),
        ({"gpus": [{"index": 0, "uuid": "GPU-1"}]}, "gpus has no instances"),
        ({"gpus_busy": {"GPU-1": {"why": "x"}}}, "gpus_busy has no remedy"),
        (
            {"environment": {**ENVIRONMENT, "package_environments": ["../x"]}},
            "is not a valid environment",
        ),
        ({"environment": {**ENVIRONMENT, "python_series": "3"}}, "is not a Python version"),
        ({"environment": {**ENVIRONMENT, "root": "venv"}}, "root is not an absolute path"),
        ({"missing_modules": ["x"] * 2000}, "missing_modules is not a list of at most 1000"),
    ],
)
def test_facts_that_cannot_be(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(reports.ReportError, match=why):
        reports.facts({**FACTS, **changed})


def test_a_job_without_any_rank_of_its_own_hides_no_other() -> None:
    odd: Any = {**LISTED, "ranks": [{**LISTED["ranks"][0], "task": "worker-1"}]}
    (job,) = listing.merge({"node-0": [odd]})
    assert [rank["task"] for rank in job["ranks"]] == ["worker-1"]


@pytest.mark.parametrize("task", ["../../x", "worker-0/../../x", "worker-x", "", "worker--1"])
def test_a_task_that_is_none_never_becomes_a_path(task: str) -> None:
    with pytest.raises(reports.ReportError, match="task is not a task such as worker-0"):
        reports.rank({**RANK, "task": task})


def test_more_than_was_said_fills_no_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers = iter([{"size": 10}, {"data": base64.b64encode(b"0123456789").decode()}])
    monkeypatch.setattr(connections, "run", lambda *_: next(answers))
    reached = []

    def fetch_file(source: str, destination: str) -> None:
        with open(destination, "wb", buffering=0) as stream:
            for _ in range(100):
                stream.write(bytes(1 << 20))
                reached.append(stream.tell())

    archive = tmp_path / "results.tar.gz"
    action = SimpleNamespace(_connection=SimpleNamespace(become=None, fetch_file=fetch_file))
    connections.fetch(action, "/there", archive, 1 << 30)
    assert max(reached) <= 64 << 20
    assert archive.read_bytes() == b"0123456789"


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


# ------------------------------------------------------------------------------------- the watch
UPDATE = {
    "state": {"phase": "failed", "exit_code": 1, "reason": "was killed", "ended_at": 1.0},
    "log": "a line\n",
    "progress": '{"step": 3, "loss": 0.5}\n',
    "supervisor": "",
    "cursor": {"phase": "failed", "frozen": False, "log": 7, "progress": 24, "supervisor": 0},
    "more": False,
    "age": 1.0,
    "now": 1795244560.0,
    "load": {"t": 1.0, "machine": "m", "cpu_s": 1.0, "gpus": [{"index": 0, "mhz": 1}]},
}


@pytest.mark.parametrize(
    ("reported", "cause"), [("stopped", "stopped"), ("hung", "hung"), ("of 2030", "exit")]
)
def test_a_cause_that_is_not_known_is_a_scripts_own_end(reported: str, cause: str) -> None:
    update = reports.update({**UPDATE, "state": {"phase": "stopped", "cause": reported}})
    assert update["state"]["cause"] == cause


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
