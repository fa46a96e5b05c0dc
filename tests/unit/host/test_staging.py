"""Staging: the claim on an attempt, what is undone, and what cannot be started."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import socket
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.job_folders import lay_out
from tests.unit.host.conftest import ELSEWHERE, HERE, lay_out_on, made_ready
from train.gang import launcher
from train.host import (
    json_files,
    rank_files,
    ranks,
    records,
    staging,
)
from train.host.call_types import CallError

MANIFEST: dict[str, Any] = {"job": "night-1", "attempt": 2, "attempts": [{"claim": "mine"}]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the claim's file, which does not exist yet."""
    folder = tmp_path / "jobs/night-1"
    folder.mkdir(parents=True)
    return folder / "attempt-2.claim"


def claim(path: Path) -> None:
    staging.claim(str(path.parent), MANIFEST)


@pytest.mark.parametrize("mark", ["mine", "another's"])
def test_a_claim_that_is_being_written_is_waited_for(path: Path, mark: str) -> None:
    path.touch()  # created by another rank of the machine, which has not written it yet
    writer = threading.Timer(0.2, path.write_text, [mark])
    writer.start()
    if mark == "mine":
        claim(path)
    else:
        with pytest.raises(
            CallError, match="another control node already started attempt 2 of job"
        ):
            claim(path)
    writer.join()
    assert path.read_text() == mark


def test_a_claim_without_a_start_is_void_after_a_while(path: Path) -> None:
    path.write_text("another's")
    with pytest.raises(CallError, match="another control node"):
        claim(path)
    long_ago = time.time() - staging.CLAIM_S - 1
    os.utime(path, (long_ago, long_ago))
    claim(path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("argv", "environment", "message"),
    [
        (["main.py", 3], {}, "argument 1 of the script is not a valid string"),
        (["main.py", "a\0b"], {}, "argument 1 of the script is not a valid string"),
        (["main.py"], {"A": 4}, "A is not a valid string (int): quote the value"),
        (["main.py"], {"A": "hidden\0"}, "train_job_environment: A is not a valid string (str)"),
        (["main.py"], {"A=B": "hidden"}, "contains 'A=B', which is not a valid variable name"),
        (["main.py"], {"": "hidden"}, "contains '', which is not a valid variable name"),
    ],
)
def test_what_no_process_can_be_started_with(
    argv: list[Any], environment: dict[str, Any], message: str
) -> None:
    spec: Any = {"argv": argv, "environment": environment}
    with pytest.raises(CallError, match=re.escape(message)) as refused:
        staging.check_texts(spec)
    assert "hidden" not in str(refused.value)
    sound: Any = {"argv": ["main.py", ""], "environment": {"A": ""}}
    staging.check_texts(sound)


def test_a_script_is_not_started_without_the_environment_that_it_was_started_with() -> None:
    manifest = {"environment_names": ["DATA", "TOKEN", "RANK"], "environment_differs": ["RANK"]}
    staging.check_environment({"DATA": "/data", "TOKEN": ""}, manifest)
    with pytest.raises(CallError, match="was started with TOKEN in train_job_environment, but"):
        staging.check_environment({"DATA": "/data"}, manifest)


def staged_again(root: Path, task: str, claim: str) -> Path:
    """Stage the second attempt of a rank like ``stage``, and return its folder."""
    rank_dir = root / "jobs/night" / task
    spec = ranks.specification(str(rank_dir))
    (rank_dir.parent / (rank_files.CLAIM_FILE % 2)).write_text(claim)
    ranks.set_aside(str(rank_dir))
    staging.write_description(str(rank_dir.parent), {"attempt": 2, "job": "night"})
    json_files.write_json(str(rank_dir / rank_files.RANK_FILE), dict(spec, attempt=2))
    return rank_dir


def unstage(root: Path, task: str, claim: str) -> str:
    """Undo ``staged_again``, and return the message."""
    about = {"root": str(root), "lease_dir": str(root / "leases"), "job": "night", "task": task}
    with pytest.raises(CallError) as raised:
        staging.unstage({**about, "attempt": "2", "created_at": "1.0", "claim": claim})
    return str(raised.value)


def files_of(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_a_later_attempt_that_is_unstaged_leaves_the_job_as_it_was(tmp_path: Path) -> None:
    """One of two ranks on a machine had its earlier files set aside, and got no new ones."""
    for task in ("worker-0", "worker-1"):
        lay_out(tmp_path, "night", task, host=task, phase=records.FAILED)
    job_dir = tmp_path / "jobs/night"
    json_files.write_json(str(job_dir / rank_files.JOB_FILE), {"attempt": 1})
    before = files_of(job_dir)
    for task in ("worker-0", "worker-1"):
        staged_again(tmp_path, task, "mine")
    (job_dir / "worker-1" / rank_files.RANK_FILE).unlink()
    assert "belongs to another control node" in unstage(tmp_path, "worker-0", "other")
    for task in ("worker-0", "worker-1"):
        assert "leases were released" in unstage(tmp_path, task, "mine")
    assert files_of(job_dir) == before
    assert ranks.reported(str(job_dir / "worker-0"))["phase"] == records.FAILED
    unstage(tmp_path, "worker-0", "mine")
    assert files_of(job_dir).keys() == before.keys()


def test_a_rank_that_has_started_is_not_unstaged(tmp_path: Path) -> None:
    lay_out(tmp_path, "night", "worker-0", host="a", phase=records.FAILED)
    rank_dir = staged_again(tmp_path, "worker-0", "mine")
    (rank_dir / rank_files.STATE_FILE).write_text('{"phase": "stopped", "attempt": 2}')
    unstage(tmp_path, "worker-0", "mine")
    assert ranks.specification(str(rank_dir))["attempt"] == 2


def test_a_rank_that_only_a_later_attempt_had_leaves_nothing(tmp_path: Path) -> None:
    rank_dir = made_ready(tmp_path, 1.0, attempt=2)
    unstage(tmp_path, "worker-0", "mine")
    assert not rank_dir.exists()


def test_another_attempt_ends_what_ran_under_any_name_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second attempt has worker-0 and worker-1 here, and worker-2 elsewhere.
    for index, machine in enumerate((HERE, HERE, HERE, ELSEWHERE)):
        running = records.RUNNING if index > 1 else records.STOPPED
        lay_out_on(tmp_path, f"worker-{index}", f"10.0.0.{index}", machine, phase=running)
    machines = {"a": HERE, "b": HERE, "c": ELSEWHERE}
    manifest = {
        "hosts": {name: {"machine": machine} for name, machine in machines.items()},
        "ranks": [{"host": name, "task": f"worker-{n}"} for n, name in enumerate(machines)],
    }
    stopped: list[str] = []

    def stop(folder: str, *_: Any) -> dict[str, list[int]]:
        stopped.append(Path(folder).name)
        return {"remaining": []}

    monkeypatch.setattr(ranks, "stop", stop)
    job_dir = tmp_path / "jobs/night"
    staging.end_earlier(str(job_dir), str(job_dir / "worker-0"), "a", manifest)
    assert sorted(stopped) == ["worker-0", "worker-2"]
    assert (job_dir / "worker-0/attempts/1/rank.json").exists()
    assert not (job_dir / "worker-1/attempts").exists()


def shared_of(**more: Any) -> staging.Shared:
    content = base64.b64encode(b"the archive of the code").decode()
    manifest = json.dumps({"job": "night", "attempt": 1})
    given = {"manifest": manifest, "content": content, "launcher": launcher.archive()}
    return staging.Shared({**given, **more})


def test_ranks_of_a_call_have_links_to_one_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, first, second, third = shared_of(), *(tmp_path / name for name in "abc")
    shared.unpack_launcher(str(first))
    shared.launcher_dir = str(first)
    shared.unpack_launcher(str(second))
    files = [path.relative_to(first) for path in first.rglob("*") if path.is_file()]
    assert {str(name) for name in files} == {"programs.zip", "fail_at_once.py"}
    assert all((second / name).samefile(first / name) for name in files)

    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    shared.unpack_launcher(str(third))
    assert all((third / name).read_bytes() == (first / name).read_bytes() for name in files)
    assert not any((third / name).samefile(first / name) for name in files)


def test_a_broken_archive_leaves_no_folder(tmp_path: Path) -> None:
    spec: Any = {"task": "worker-0", "attempt": 1, "results_dir": "worker-0", "checkpoint_dir": "c"}
    params: Any = {"force": False, "tf_config": "{}"}
    for archive in (b"no archive", tar_of(b"1" * 100_000)[:100]):
        shared = shared_of(content=base64.b64encode(archive).decode())
        with pytest.raises(CallError, match=f"cannot unpack the code in {tmp_path}/worker-0: "):
            staging.fill(params, shared, str(tmp_path), spec.copy())
        assert not any(path.name.startswith("worker-0") for path in tmp_path.iterdir())


def tar_of(content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        member = tarfile.TarInfo("code/data")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def test_each_job_folder_of_a_call_is_described_once(tmp_path: Path) -> None:
    shared = shared_of()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shared.describe(str(tmp_path / name))
        stored = json.loads((tmp_path / name / rank_files.JOB_FILE).read_text())
        assert stored == {"job": "night", "attempt": 1}
        archive = tmp_path / name / rank_files.ARCHIVE_FILE
        assert archive.read_bytes() == b"the archive of the code"
        archive.unlink()
    shared.describe(str(tmp_path / "a"))
    assert not (tmp_path / "a" / rank_files.ARCHIVE_FILE).exists()


def test_each_name_is_resolved_once_for_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def resolve(host: str, _: Any) -> list[str]:
        asked.append(host)
        if host == "gone":
            raise OSError
        return [host]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    shared = shared_of()
    for _ in range(3):
        cluster = {"worker": ["gone:1", "a:1", "a:2"], "ps": ["[::1]:3"]}
        assert shared.unresolvable(cluster) == ["gone"]
    assert sorted(asked) == ["::1", "a", "gone"]
