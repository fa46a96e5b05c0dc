"""The module ``tensorflow_venv``: environments, their markers, the link, packages on top."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tensorflow_role import (
    HERE,
    Call,
    acceptance,
    environments,
    gpus,
    installation,
    make_lock,
    make_wheel,
    shown_version,
    with_extra,
    with_lock,
)

pytest_plugins = ("tests.tensorflow_role",)


def packages(venv: str) -> list[str]:
    """What is in an environment's folder of packages."""
    folder = Path(venv, "lib", f"python{HERE}", "site-packages")
    return sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")


def test_a_fresh_install_and_a_second_run(
    params: dict[str, Any], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = call(params, check_mode=True)
    assert (checked["changed"], checked["parts"]) == (True, ["tensorflow"])
    assert "venv -> tensorflow-1.0-cpu" in checked["diff"]["after"]
    assert not Path(params["root"]).exists()
    result = call(params)
    assert (result["version"], result["variant"]) == ("1.0", "cpu"), result
    digest = hashlib.sha256(Path(params["requirements"]).read_bytes()).hexdigest()
    assert environments(params["root"]) == [f"tensorflow-1.0-cpu-py{HERE}-{digest[:12]}"]
    assert os.readlink(result["link"]) == os.path.relpath(result["venv"], params["root"])
    assert shown_version(result["link"]) == "1.0"
    marker = json.loads(Path(result["venv"], "tensorflow-venv.json").read_text())
    assert (marker["requirements_sha256"], marker["version"]) == (digest, "1.0")
    assert packages(result["venv"]) == ["tensorflow.py", "tensorflow_cpu-1.0.dist-info"]
    assert not Path(result["venv"], ".scratch").exists()
    for part in (installation, acceptance):
        monkeypatch.setattr(part, "run", lambda *_: pytest.fail("a program was started"))
    second = call(params)
    assert (second["changed"], second["venv"]) == (False, result["venv"])
    assert second["diff"]["before"] == second["diff"]["after"]


def test_a_child_that_outlives_the_module_keeps_the_lock(
    params: dict[str, Any], call: Call, without_pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(params["root"], "venvs")
    folder.mkdir(parents=True)
    with installation.exclusive(str(folder)) as held:
        orphan = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(held,))
    monkeypatch.setattr(installation, "LOCK_WAIT_S", 0.0)
    assert f"has held {folder}/.lock for 0 minutes" in call(params)["msg"]
    orphan.communicate()
    assert call(params)["changed"]


@pytest.mark.parametrize("damage", ["no marker", "torn marker", "python gone"])
def test_half_made_is_made_again(
    params: dict[str, Any], call: Call, without_pip: None, damage: str
) -> None:
    venv = Path(call(params)["venv"])
    (venv / "left-over").write_text("")
    if damage == "no marker":
        (venv / "tensorflow-venv.json").unlink()
    elif damage == "torn marker":
        (venv / "tensorflow-venv.json").write_text('{"version": "1.0", "requi')
    else:
        for program in venv.glob("bin/python*"):
            program.unlink()
    result = call(params)
    assert result["parts"] == ["tensorflow"]
    assert not (venv / "left-over").exists()
    assert shown_version(result["link"]) == "1.0"


def test_a_new_lock_and_back_and_more_to_import(
    params: dict[str, Any], call: Call, without_pip: None, tmp_path: Path
) -> None:
    first = call(params)
    lock = make_lock(tmp_path / "lock2.txt", make_wheel(tmp_path / "wheels", "2.0"))
    second = call(with_lock(params, lock))
    assert (shown_version(second["link"]), shown_version(first["venv"])) == ("2.0", "1.0")
    wider = {**params, "locks": [{**params["locks"][0], "imports": ["tensorflow", "json"]}]}
    for wanted in (params, wider):
        result = call(wanted)
        assert (result["changed"], result["parts"]) == (True, [])
        assert shown_version(result["link"]) == "1.0"
    assert not call(wider)["changed"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (None, "has another file than the one that is locked"),
        ("missing", f"has no fitting wheel for Python {HERE}"),
        ("import no_such_module\n", "No module named 'no_such_module'"),
        ("__version__ = '0.9'\n", "tensorflow has the version 0.9, the lock"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)\n", "such as AVX"),
    ],
)
def test_what_is_not_good_is_not_linked(
    params: dict[str, Any],
    call: Call,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    body: str | None,
    said: str,
) -> None:
    if body not in (None, "missing"):
        request.getfixturevalue("without_pip")
    first = call(params)
    wheel = make_wheel(tmp_path / "wheels", "2.0", body or "")
    lock = make_lock(tmp_path / "lock2.txt", wheel)
    if body is None:
        make_wheel(tmp_path / "wheels", "2.0", "evil = True\n")
    elif body == "missing":
        wheel.unlink()
    result = call(with_lock(params, lock))
    assert result["failed"]
    assert said in result["msg"]
    assert str(lock) in result["msg"] or "0.9" in said
    assert shown_version(first["link"]) == "1.0"
    assert environments(params["root"]) == [Path(first["venv"]).name]


def test_too_little_space(
    params: dict[str, Any], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimpleNamespace(f_bavail=250, f_frsize=4_000_000)
    monkeypatch.setattr(installation.os, "statvfs", lambda _: disk)
    for wheelhouse, need in [(params["wheelhouse"], 2100), ("", 2600)]:
        said = call({**params, "wheelhouse": wheelhouse})["msg"]
        assert f"1000 MB free, {need} MB are needed. Free {need - 1000} MB" in said
    assert not Path(params["root"]).exists()


def fake_python(folder: Path, **answer: object) -> str:
    """A program that answers the module's question as some Python would."""
    known = {"executable": "x", "version": "3.11.2", "has_venv": True, "system": "Linux"}
    program = folder / "fake-python"
    program.write_text(f"#!/bin/sh\necho '{json.dumps({**known, **answer})}'\n")
    program.chmod(0o755)
    return str(program)


def test_what_will_not_do_is_refused(params: dict[str, Any], call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    old = "is Python 3.9.2; TensorFlow 1.0 needs 3.10 to 3.13. Install Python 3.10 to 3.13 and set"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"python": fake_python(tmp_path, version="3.9.2")}, old),
        ({"python": "python-of-nobody"}, "there is no program 'python-of-nobody' on this host"),
        ({"python": "true"}, "is no Python 3 (exit code 0). Install Python 3.10 to 3.13"),
        ({"supported_python": ["3.10"]}, "is ['3.10']: write the oldest and the newest"),
        ({"wheelhouse": "/nowhere"}, "there is no folder /nowhere on this host"),
        ({"root": "train"}, "tensorflow_root is 'train': write an absolute path"),
        ({"root": str(tmp_path / "file")}, "must be a folder that this user may write to"),
        ({"keep": -1}, "tensorflow_keep is -1: write how many environments stay"),
    ]
    for name in ("jobs", "venvs", "a/b", "..", "-x", ""):
        cases.append(({"environment": name}, f"tensorflow_environment is {name!r}: take a name"))
    for url in ("pypi.example/simple", "https://user:s3cret@[::1/simple"):
        cases.append(({"index_url": url}, "tensorflow_index_url is no address of a package index"))
    for wrong, said in cases:
        result = call({**params, **wrong})
        assert result["failed"]
        assert said in result["msg"]
        assert not (wrong.get("index_url") and wrong["index_url"] in json.dumps(result))
        fake_python(tmp_path, version="3.14.0")
    assert "is Python 3.14.0" in call({**params, "python": str(tmp_path / "fake-python")})["msg"]
    bare = fake_python(tmp_path, has_venv=False)
    assert f"{bare} has no module venv" in call({**params, "python": bare})["msg"]
    assert not Path(params["root"]).exists()
    folder = Path(params["root"], "venv")
    folder.mkdir(parents=True)
    assert f"{folder} is not a link made by this role. Move it away" in call(params)["msg"]
    with open(params["requirements"], "a") as stream:
        stream.write("# more\n")
    folder.rmdir()
    assert "was changed during the run" in call(params)["msg"]


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


def test_index_url_is_in_no_argument(
    params: dict[str, Any], call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    project = tmp_path / "s3cret" / "tensorflow-cpu"
    wheel = make_wheel(project, "1.0")
    (project / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    commands: list[str] = []
    real = installation.run

    def record(words: list[str], *rest: Any) -> Any:
        commands.extend(words)
        return real(words, *rest)

    monkeypatch.setattr(installation, "run", record)
    result = call({**params, "wheelhouse": "", "index_url": (tmp_path / "s3cret").as_uri()})
    assert result["changed"], result
    assert "--require-hashes" in commands
    assert "s3cret" not in json.dumps([commands, result])


# Packages on top


def test_packages_on_top(params: dict[str, Any], call: Call, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    extra, shared = (make_wheel(wheels, "1.5", name=name) for name in ("frobnicate", "shared"))
    lower = make_lock(tmp_path / "both.txt", make_wheel(wheels, "1.0"), shared)
    below = with_lock(params, lower)
    plain = call(below)
    wanted = with_extra(below, make_lock(tmp_path / "extra.txt", extra, shared))
    result = call(wanted)
    assert result["parts"] == ["extra"], result
    assert Path(result["link"]).resolve() == Path(result["venv"])
    # Through the link, as a job uses it. What both lock is not there twice.
    assert shown_version(result["link"]) == "1.0"
    assert shown_version(result["link"], "frobnicate") == "1.5"
    assert packages(result["venv"]) == [
        "frobnicate-1.5.dist-info",
        "frobnicate.py",
        "tensorflow.pth",
    ]
    assert not call(wanted)["changed"]
    assert not call(below)["changed"]  # the other link stays
    assert "frobnicate.py" not in packages(plain["venv"])
    again = call({**wanted, "environment": "venv"})
    assert (again["parts"], shown_version(plain["link"], "frobnicate")) == ([], "1.5")

    lock = make_lock(tmp_path / "lock2.txt", make_wheel(wheels, "2.0"), shared)
    second = call({**with_lock(wanted, lock)})
    assert second["parts"] == ["tensorflow", "extra"]
    assert (shown_version(second["link"]), shown_version(result["venv"])) == ("2.0", "1.0")


def test_what_fails_on_top_leaves_the_rest_alone(
    params: dict[str, Any], call: Call, tmp_path: Path
) -> None:
    before = call(params)
    bad = make_wheel(tmp_path / "wheels", "1.0", "raise ImportError", "frob", package="tensorflow")
    lock = make_lock(tmp_path / "bad.txt", bad)
    result = call(with_extra(params, lock, "venv"))
    assert "cannot import tensorflow" in result["msg"]
    assert str(lock) in result["msg"]
    assert Path(before["link"]).resolve() == Path(before["venv"])
    assert len(environments(params["root"])) == 1
