"""The module ``tensorflow_venv``: environments, their markers, the link."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tensorflow_role import (
    HERE,
    MODULE_PATH,
    ROLE,
    Call,
    environments,
    make_lock,
    make_wheel,
    part,
    shown_version,
    with_lock,
)

pytest_plugins = ("tests.tensorflow_role",)
acceptance, gpus, installation = part("acceptance"), part("gpus"), part("installation")


def test_fresh_install(params: dict[str, Any], call: Call) -> None:
    result = call(params)
    assert result["changed"]
    assert result["installed"]
    assert (result["version"], result["variant"]) == ("1.0", "cpu")
    digest = hashlib.sha256(Path(params["lock_file"]).read_bytes()).hexdigest()
    assert environments(params["root"]) == [f"tensorflow-1.0-cpu-py{HERE}-{digest[:12]}"]
    assert Path(result["link"]).resolve() == Path(result["venv"])
    assert shown_version(result["link"]) == "1.0"
    marker = json.loads(Path(result["venv"], "tensorflow-venv.json").read_text())
    assert marker["requirements_sha256"] == digest
    assert marker["version"] == "1.0"
    assert marker["python"].startswith(HERE)
    packages = Path(result["venv"], "lib", f"python{HERE}", "site-packages")
    assert sorted(path.name for path in packages.iterdir() if path.name != "__pycache__") == [
        "tensorflow.py",
        "tensorflow_cpu-1.0.dist-info",
    ]
    assert not Path(result["venv"], ".scratch").exists()


def test_second_run_does_nothing(
    params: dict[str, Any], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = call(params)
    for part_of in (installation, acceptance):
        monkeypatch.setattr(part_of, "run", lambda *_: pytest.fail("a program was started"))
    second = call(params)
    assert not second["changed"]
    assert not second["installed"]
    assert second["venv"] == first["venv"]


#: Runs the module as a script, with what Ansible packs beside it.
AS_SCRIPT = f"""
import ansible.module_utils, runpy
ansible.module_utils.__path__.append({str(ROLE / "module_utils")!r})
runpy.run_path({str(MODULE_PATH)!r}, run_name="__main__")
"""


def test_two_at_once_install_once(params: dict[str, Any], tmp_path: Path) -> None:
    arguments = tmp_path / "arguments.json"
    arguments.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": params}))
    lock = Path(params["root"], "venvs", ".lock")
    lock.parent.mkdir(parents=True)
    with installation.exclusive(str(lock)):
        started = [
            subprocess.Popen(
                [sys.executable, "-c", AS_SCRIPT, str(arguments)], stdout=subprocess.PIPE
            )
            for _ in range(2)
        ]
        while not all(waits_for(process.pid, lock) for process in started):
            assert all(process.poll() is None for process in started)
            time.sleep(0.05)
        assert environments(params["root"]) == []
    results = [json.loads(process.communicate()[0]) for process in started]
    assert sorted(result["changed"] for result in results) == [False, True]
    assert sorted(result["installed"] for result in results) == [False, True]
    assert shown_version(results[0]["link"]) == "1.0"


def waits_for(pid: int, lock: Path) -> bool:
    """Whether a process stands before the lock: it has the file open (or has ended)."""
    try:
        return any(os.path.samefile(fd, lock) for fd in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def test_a_child_that_outlives_the_module_keeps_the_lock(tmp_path: Path) -> None:
    lock = str(tmp_path / ".lock")
    child = "import sys; print('up', flush=True); sys.stdin.read()"
    with installation.exclusive(lock) as held:
        orphan = subprocess.Popen(
            [sys.executable, "-c", child],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(held,),
        )
        assert orphan.stdout is not None
        assert orphan.stdout.readline() == b"up\n"
    assert installation.busy(lock)
    orphan.communicate()
    assert not installation.busy(lock)


def test_waiting_has_a_limit(
    params: dict[str, Any], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "LOCK_WAIT_S", 0.0)
    lock = Path(params["root"], "venvs", ".lock")
    lock.parent.mkdir(parents=True)
    with installation.exclusive(str(lock)):
        result = call(params)
    assert result["failed"]
    assert f"has held {lock} for 0 minutes" in result["msg"]


@pytest.mark.parametrize("damage", ["no marker", "torn marker", "python gone"])
def test_half_made_is_made_again(params: dict[str, Any], call: Call, damage: str) -> None:
    venv = Path(call(params)["venv"])
    (venv / "left-over").write_text("")
    if damage == "no marker":
        (venv / "tensorflow-venv.json").unlink()
    elif damage == "torn marker":
        (venv / "tensorflow-venv.json").write_text('{"version": "1.0", "requi')
    else:
        for name in ("python", "python3", f"python{HERE}"):
            (venv / "bin" / name).unlink()
    result = call(params)
    assert result["changed"]
    assert result["installed"]
    assert not (venv / "left-over").exists()
    assert shown_version(result["link"]) == "1.0"


def test_new_lock_gets_its_own_environment_and_the_old_one_stays(
    params: dict[str, Any], call: Call, tmp_path: Path
) -> None:
    first = call(params)
    lock = make_lock(tmp_path / "lock2.txt", make_wheel(tmp_path / "wheels", "2.0"))
    second = call(with_lock(params, lock))
    assert shown_version(second["link"]) == "2.0"
    assert shown_version(first["venv"]) == "1.0"
    back = call(params)
    assert back["changed"]
    assert not back["installed"]
    assert shown_version(back["link"]) == "1.0"


def test_more_to_import_is_tried_without_installing(params: dict[str, Any], call: Call) -> None:
    call(params)
    wider = {**params["locks"][0], "imports": ["tensorflow", "json"]}
    result = call({**params, "locks": [wider]})
    assert result["changed"]
    assert not result["installed"]
    assert not call({**params, "locks": [wider]})["changed"]


def test_wrong_hash_is_refused_and_the_link_stays(
    params: dict[str, Any], call: Call, tmp_path: Path
) -> None:
    first = call(params)
    wheel = make_wheel(tmp_path / "wheels", "2.0")
    lock = make_lock(tmp_path / "lock2.txt", wheel)
    make_wheel(tmp_path / "wheels", "2.0", "evil = True\n")
    result = call(with_lock(params, lock))
    assert result["failed"]
    assert (
        f"the folder {wheel.parent} has another file than the one that is locked" in result["msg"]
    )
    assert "Expected sha256" in result["msg"]  # pip's own words
    assert shown_version(first["link"]) == "1.0"
    assert environments(params["root"]) == [Path(first["venv"]).name]


def test_missing_wheel(params: dict[str, Any], call: Call) -> None:
    (wheel,) = Path(params["wheelhouse"]).iterdir()
    wheel.unlink()
    result = call(params)
    assert result["failed"]
    assert f"{params['wheelhouse']} has no fitting wheel for Python {HERE}" in result["msg"]
    assert "tensorflow-cpu==1.0" in result["msg"]
    assert not Path(params["root"], "venv").exists()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import no_such_module\n", "No module named 'no_such_module'"),
        ("__version__ = '0.9'\n", "tensorflow calls itself 0.9, the lock"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)\n", "such as AVX"),
    ],
)
def test_environment_that_is_not_accepted_is_not_linked(
    params: dict[str, Any], call: Call, tmp_path: Path, body: str, said: str
) -> None:
    first = call(params)
    lock = make_lock(tmp_path / "lock2.txt", make_wheel(tmp_path / "wheels", "2.0", body))
    result = call(with_lock(params, lock))
    assert result["failed"]
    assert said in result["msg"]
    assert shown_version(first["link"]) == "1.0"
    assert environments(params["root"]) == [Path(first["venv"]).name]


@pytest.mark.parametrize(("wheelhouse", "need"), [(True, 2100), (False, 2600)])
def test_too_little_space(
    params: dict[str, Any],
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    wheelhouse: bool,
    need: int,
) -> None:
    disk = SimpleNamespace(f_bavail=250, f_frsize=4_000_000)
    monkeypatch.setattr(installation.os, "statvfs", lambda _: disk)
    result = call(params if wheelhouse else {**params, "wheelhouse": ""})
    assert result["failed"]
    assert f"1000 MB free, {need} MB are needed. Free {need - 1000} MB" in result["msg"]
    assert str(Path(params["root"]).parent) in result["msg"]
    assert "set tensorflow_root" in result["msg"]
    assert not Path(params["root"]).exists()


def fake_python(folder: Path, **answer: object) -> str:
    """A program that answers the module's question as some Python would."""
    known = {"executable": "x", "version": "3.11.2", "has_venv": True, "system": "Linux"}
    program = folder / "fake-python"
    program.write_text(f"#!/bin/sh\necho '{json.dumps({**known, **answer})}'\n")
    program.chmod(0o755)
    return str(program)


def test_unfit_python_is_refused(params: dict[str, Any], call: Call, tmp_path: Path) -> None:
    cases = {
        fake_python(
            tmp_path, version="3.9.2"
        ): "is Python 3.9.2; TensorFlow 1.0 needs 3.10 to 3.13",
        "python-of-nobody": "there is no program 'python-of-nobody' on this host",
        "true": "does not answer as a Python 3 (exit code 0)",
    }
    for program, said in cases.items():
        result = call({**params, "python": program})
        assert result["failed"]
        assert said in result["msg"]
        assert "Install Python 3.10 to 3.13 and set tensorflow_python" in result["msg"]
    too_new = fake_python(tmp_path, version="3.14.0")
    assert "is Python 3.14.0" in call({**params, "python": too_new})["msg"]
    said = call({**params, "supported_python": ["3.10"]})["msg"]
    assert "tensorflow_python_supported is ['3.10']: write the oldest and the newest" in said
    bare = fake_python(tmp_path, has_venv=False)
    assert f"{bare} has no module venv" in call({**params, "python": bare})["msg"]
    assert not Path(params["root"]).exists()


@pytest.mark.parametrize("how", ["check mode", "no pip"])
def test_looking_changes_nothing(params: dict[str, Any], call: Call, how: str) -> None:
    looking = {k: v for k, v in params.items() if how != "no pip" or k in LOOKING}
    result = call(looking, check_mode=how == "check mode")
    assert result["changed"]
    assert result["installed"]
    assert not Path(params["root"]).exists()
    call(params)
    assert not call(looking, check_mode=how == "check mode")["changed"]


LOOKING = {"root", "python", "supported_python", "wheelhouse", "locks"}


def test_bad_places_are_refused(params: dict[str, Any], call: Call, tmp_path: Path) -> None:
    missing = str(tmp_path / "nowhere")
    said = call({**params, "wheelhouse": missing})["msg"]
    assert f"there is no folder {missing} on this host" in said
    said = call({**params, "root": "train"})["msg"]
    assert "tensorflow_root is 'train': write an absolute path" in said
    folder = Path(params["root"], "venv")
    folder.mkdir(parents=True)
    said = call(params)["msg"]
    assert f"{folder} is not a link made by this role. Move it away" in said
    assert list(Path(params["root"]).iterdir()) == [folder]
    (tmp_path / "file").write_text("")
    said = call({**params, "root": str(tmp_path / "file")})["msg"]
    assert "must be a folder that this user may write to" in said


def test_variant_follows_the_device(
    params: dict[str, Any], call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (lock,) = params["locks"]
    both = {**params, "locks": [lock, {**lock, "variant": "gpu"}]}
    monkeypatch.setattr(gpus, "PROC", str(tmp_path / "proc"))
    monkeypatch.setattr(gpus, "DEV", str(tmp_path))
    assert call(both, check_mode=True)["variant"] == "cpu"
    (tmp_path / "nvidia0").touch()
    assert call(both, check_mode=True)["variant"] == "gpu"
    assert call({**both, "variant": "cpu"}, check_mode=True)["variant"] == "cpu"
    assert call(params, check_mode=True)["variant"] == "cpu"  # the only lock
    said = call({**params, "variant": "gpu"}, check_mode=True)["msg"]
    assert f"tensorflow_variant is gpu, but the lock is {lock['path']} (cpu)" in said


def test_changed_lock_file_is_refused(params: dict[str, Any], call: Call) -> None:
    with open(params["lock_file"], "a") as stream:
        stream.write("# more\n")
    result = call(params)
    assert result["failed"]
    assert "was changed during the run" in result["msg"]


def test_index_url_is_in_no_argument(
    params: dict[str, Any], call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    project = tmp_path / "s3cret" / "tensorflow-cpu"
    wheel = make_wheel(project, "1.0")
    (project / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    calls: list[tuple[Any, ...]] = []
    real = installation.run

    def record(command: list[str], held: int, *more: Any, **options: Any) -> Any:
        calls.append((command, *more))
        return real(command, held, *more, **options)

    monkeypatch.setattr(installation, "run", record)
    result = call({**params, "wheelhouse": "", "index_url": (tmp_path / "s3cret").as_uri()})
    assert result["changed"], result
    (pip,) = [call for call in calls if "install" in call[0]]
    assert "s3cret" not in " ".join(pip[0])
    assert pip[1]["PIP_INDEX_URL"] == (tmp_path / "s3cret").as_uri()
    assert "s3cret" not in json.dumps(result)


@pytest.mark.parametrize("url", ["pypi.example/simple", "https://user:s3cret@[::1/simple"])
def test_bad_index_url_is_not_shown(params: dict[str, Any], call: Call, url: str) -> None:
    result = call({**params, "index_url": url})
    assert result["failed"]
    assert "tensorflow_index_url is no address of a package index" in result["msg"]
    assert url not in json.dumps(result)
