"""The module ``tensorflow_venv``: environments, their markers, the link, packages on top."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pip
import pytest
from ansible.module_utils.testing import patch_module_args

from tests.support import tensorflow_role as role
from tests.support.tensorflow_role import HERE, locks, make_lock, make_wheel, shown_version

Params = dict[str, Any]
Call = Callable[..., dict[str, Any]]
Patch = pytest.MonkeyPatch


def with_lock(params: Params, lock: Path) -> Params:
    """The module's parameters with another lock, and a folder as hosts are sent it."""
    sent = Path(f"{lock}.sent")
    if not sent.exists():
        sent.mkdir()
        (sent / "pip").symlink_to(Path(pip.__file__).parent)
        (sent / "tensorflow.txt").symlink_to(lock)
    return {**params, "locks": locks.locks([str(lock)]), "sent": str(sent)}


def with_extra(params: Params, lock: Path, name: str = "script") -> Params:
    """The module's parameters with packages on top."""
    shutil.copy(lock, Path(params["sent"], "extra.txt"))
    return {**params, "extra": locks.locks([str(lock)], extra=True)[0], "environment": name}


@pytest.fixture
def params(tmp_path: Path) -> Params:
    """Arguments for an installation of version 1.0 from a folder of wheels."""
    wheel = make_wheel(tmp_path / "wheels", "1.0")
    fixed = {"root": str(tmp_path / "root"), "python": sys.executable}
    lock = make_lock(tmp_path / "lock.txt", wheel)
    return with_lock({**fixed, "wheelhouse": str(wheel.parent)}, lock)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the module in this process; returns its result."""

    def run(params: Params, check_mode: bool = False) -> Params:
        arguments = {**params, "_ansible_check_mode": check_mode}
        with patch_module_args(arguments), pytest.raises(SystemExit):
            role.module.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return result

    return run


def environments(params: Params) -> list[str]:
    """The names of the environments that are there."""
    return sorted(role.cleanup.environments(f"{params['root']}/venvs"))


def packages(venv: str) -> list[str]:
    """What is in an environment's folder of packages."""
    folder = Path(venv, "lib", f"python{HERE}", "site-packages")
    return sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")


def test_a_fresh_install_and_a_second_run(
    params: Params, call: Call, monkeypatch: Patch, tmp_path: Path
) -> None:
    """From an index, whose address is in no argument of a program."""
    project = tmp_path / "s3cret" / "tensorflow-cpu"
    wheel = make_wheel(project, "1.0")
    (project / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    params = {**params, "wheelhouse": "", "index_url": (tmp_path / "s3cret").as_uri()}
    commands: list[str] = []
    real = role.installation.run

    def record(words: list[str], *rest: Any) -> Any:
        commands.extend(words)
        return real(words, *rest)

    monkeypatch.setattr(role.installation, "run", record)
    checked = call(params, check_mode=True)
    assert (checked["changed"], checked["parts"]) == (True, ["tensorflow", "link"])
    assert "venv -> tensorflow-1.0-cpu" in checked["diff"]["after"]
    assert not Path(params["root"]).exists()
    result = call(params)
    assert (result["version"], result["variant"]) == ("1.0", "cpu"), result
    assert "--require-hashes" in commands
    assert "s3cret" not in json.dumps([commands, result])
    digest = hashlib.sha256((tmp_path / "lock.txt").read_bytes()).hexdigest()
    assert environments(params) == [f"tensorflow-1.0-cpu-py{HERE}-{digest[:12]}"]
    assert os.readlink(result["link"]) == os.path.relpath(result["venv"], params["root"])
    assert shown_version(result["link"]) == "1.0"
    assert packages(result["venv"]) == ["tensorflow.py", "tensorflow_cpu-1.0.dist-info"]
    assert not Path(result["venv"], ".scratch").exists()
    monkeypatch.setattr(role.installation, "run", lambda *_: pytest.fail("a program was started"))
    second = call(params)
    assert (second["changed"], second["venv"]) == (False, result["venv"])
    assert second["diff"]["before"] == second["diff"]["after"]


def test_a_child_that_outlives_the_module_keeps_the_lock(
    params: Params, call: Call, monkeypatch: Patch
) -> None:
    folder = Path(params["root"], "venvs")
    folder.mkdir(parents=True)
    with role.installation.exclusive(str(folder)) as held:
        orphan = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(held,))
    monkeypatch.setattr(role.installation, "LOCK_WAIT_S", 0.0)
    assert f"has held {folder}/.lock for 0 minutes" in call(params)["msg"]
    orphan.communicate()
    assert call(params)["changed"]


def test_half_made_is_made_again(params: Params, call: Call) -> None:
    venv = Path(call(params)["venv"])
    marker, python = venv / "tensorflow-venv.json", venv / "bin" / "python"
    for damage in (
        marker.unlink,
        lambda: marker.write_text('{"version": "1.0", "requi'),
        python.unlink,
    ):
        (venv / "left-over").write_text("")
        damage()
        result = call(params)
        assert result["parts"] == ["tensorflow"]
        assert not (venv / "left-over").exists()
        assert shown_version(result["link"]) == "1.0"


def test_new_locks_and_back_and_more_to_import(
    params: Params, call: Call, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(role.cleanup, "shared_with", lambda _: "")
    first = call(params)
    wheels = [make_wheel(tmp_path / "wheels", version) for version in ("2.0", "3.0")]
    two, three = (with_lock(params, make_lock(Path(f"{wheel}.txt"), wheel)) for wheel in wheels)
    second = call(two)
    assert (shown_version(second["link"]), shown_version(first["venv"])) == ("2.0", "1.0")
    wider = {**params, "locks": [{**params["locks"][0], "imports": ["tensorflow", "json"]}]}
    for wanted, part in ((params, "link"), (wider, "trial")):
        result = call(wanted)
        assert (result["changed"], result["parts"], result["removed"]) == (True, [part], [])
        assert shown_version(result["link"]) == "1.0"
    assert not call(wider)["changed"]
    # The one in use and the one before stay.
    checked = call(three, check_mode=True)
    assert len(environments(params)) == 2
    third = call(three)
    assert checked["removed"] == third["removed"] == [Path(second["venv"]).name]
    assert checked["diff"] == third["diff"]
    assert environments(params) == [Path(made["venv"]).name for made in (first, third)]


def test_what_is_not_good_is_not_linked(params: Params, call: Call, tmp_path: Path) -> None:
    first = call(params)
    for number, (body, message) in enumerate(
        [
            ("tampered", "has another file than the one that is locked"),
            ("missing", f"has no fitting wheel for Python {HERE}"),
            ("import no_such_module\n", "No module named 'no_such_module'"),
            ("__version__ = '0.9'\n", "tensorflow has the version 0.9, the lock"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGILL)\n", "such as AVX"),
        ]
    ):
        wheel = make_wheel(tmp_path / "wheels", "2.0", body)
        lock = make_lock(tmp_path / f"lock{number}.txt", wheel)
        if body == "tampered":
            make_wheel(tmp_path / "wheels", "2.0", "evil = True\n")
        elif body == "missing":
            wheel.unlink()
        result = call(with_lock(params, lock))
        assert result["failed"]
        assert message in result["msg"]
        assert str(lock) in result["msg"]
        assert shown_version(first["link"]) == "1.0"
        assert environments(params) == [Path(first["venv"]).name]


def test_what_will_not_do_is_refused(
    params: Params, call: Call, tmp_path: Path, monkeypatch: Patch
) -> None:
    def fake_python(answer: str) -> Params:
        program = tmp_path / "fake-python"
        program.write_text(f"#!/bin/sh\n{answer}\n")
        program.chmod(0o755)
        return {"python": str(program)}

    (tmp_path / "file").write_text("")
    limits = "the locked TensorFlow needs 3.10 to 3.13. Install a complete Python 3.10 to 3.13"
    for version in ("3.9.2", "3.14.0"):
        wrong = fake_python(f"echo /x; echo {version}")
        assert f"is Python {version}; {limits}" in call({**params, **wrong})["msg"]
    disk = SimpleNamespace(f_bavail=250, f_frsize=4_000_000)
    monkeypatch.setattr(role.installation.os, "statvfs", lambda _: disk)
    for wrong, message in [
        ({"python": "python-of-nobody"}, "there is no program 'python-of-nobody' on this host"),
        ({"python": "true"}, "is no Python 3 with the module venv (exit code 0). Install a"),
        (fake_python("echo no venv >&2; exit 1"), "(Debian: python3, not python3-minimal)"),
        ({"wheelhouse": "/nowhere"}, "there is no folder /nowhere on this host"),
        ({"root": str(tmp_path / "file")}, "must be a folder that this user may write to"),
        ({}, "1000 MB free, 2100 MB are needed. Free 1100 MB"),
        ({"wheelhouse": ""}, "1000 MB free, 2600 MB are needed. Free 1600 MB"),
    ]:
        result = call({**params, **wrong})
        assert result["failed"]
        assert message in result["msg"]
    monkeypatch.undo()
    assert not Path(params["root"]).exists()
    folder = Path(params["root"], "venv")
    folder.mkdir(parents=True)
    assert f"{folder} is not a link made by this role. Move it away" in call(params)["msg"]
    folder.rmdir()
    with (tmp_path / "lock.txt").open("a") as stream:
        stream.write("# more\n")
    assert "was changed during the run" in call(params)["msg"]


def test_packages_on_top(params: Params, call: Call, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    extra, shared = (make_wheel(wheels, "1.5", name=name) for name in ("frobnicate", "shared"))
    below = with_lock(params, make_lock(tmp_path / "both.txt", make_wheel(wheels, "1.0"), shared))
    top = make_lock(tmp_path / "extra.txt", extra, shared)
    plain = call(below)
    wanted = with_extra(below, top)
    result = call(wanted)
    assert result["parts"] == ["extra", "link"], result
    assert Path(result["link"]).resolve() == Path(result["venv"])
    # Through the link, as a job uses it. What both lock is not there twice.
    assert shown_version(result["link"]) == "1.0"
    assert shown_version(result["link"], "frobnicate") == "1.5"
    there = ["frobnicate-1.5.dist-info", "frobnicate.py", "tensorflow.pth"]
    assert packages(result["venv"]) == there
    assert not call(wanted)["changed"]
    assert not call(below)["changed"]  # the other link stays
    assert "frobnicate.py" not in packages(plain["venv"])

    bad = make_wheel(wheels, "1.0", "raise ImportError", "frob", package="tensorflow")
    lock = make_lock(tmp_path / "bad.txt", bad)
    failed = call(with_extra(below, lock, "venv"))
    assert "cannot import tensorflow" in failed["msg"]
    assert str(lock) in failed["msg"]
    assert Path(plain["link"]).resolve() == Path(plain["venv"])
    assert len(environments(params)) == 2

    again = call(with_extra(below, top, "venv"))
    assert (again["parts"], shown_version(plain["link"], "frobnicate")) == (["link"], "1.5")
    lock = make_lock(tmp_path / "lock2.txt", make_wheel(wheels, "2.0"), shared)
    second = call(with_extra(with_lock(params, lock), top))
    assert second["parts"] == ["tensorflow", "extra", "link"]
    assert (shown_version(second["link"]), shown_version(result["venv"])) == ("2.0", "1.0")


# GPUs. All of them are fakes.

VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Nov 21 08:00:00 UTC 2026\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\n"
#: A TensorFlow that sees as many GPUs as a file has, and notes that it was asked.
SEES = """
import os, pathlib, sys
class config:
    @staticmethod
    def list_physical_devices(kind):
        with open("{0}/calls", "a") as stream:
            stream.write(kind + " " + os.environ.get("CUDA_VISIBLE_DEVICES", "all") + "\\n")
        print("nothing to do with it", file=sys.stderr)
        print("W0000 gpu_device.cc:1] Cannot dlopen some GPU libraries.", file=sys.stderr)
        return ["GPU"] * int(pathlib.Path("{0}/seen").read_text())
"""


def has_gpus(
    host: Path, count: int, version: str = "550.54.15", seen: int | None = None, text: str = VERSION
) -> None:
    """Set what the driver of a host shows, and what its TensorFlow sees."""
    for index in range(count):
        (host / "proc" / "gpus" / f"0000:0{index}:00.0").mkdir(parents=True, exist_ok=True)
        (host / "dev" / f"nvidia{index}").touch()
    (host / "proc" / "version").write_text(text.format(version))
    (host / "seen").write_text(str(count if seen is None else seen))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: Patch) -> Path:
    """What a host without GPUs shows."""
    (tmp_path / "dev").mkdir()
    monkeypatch.setattr(role.gpus, "PROC", str(tmp_path / "proc"))
    monkeypatch.setattr(role.gpus, "DEV", str(tmp_path / "dev"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


@pytest.fixture
def gpu_params(params: Params, host: Path) -> Params:
    """Arguments for a stand-in of TensorFlow with CUDA."""
    wheel = make_wheel(host / "wheels", "1.0", SEES.format(host))
    found = with_lock(params, make_lock(host / "gpu.txt", wheel))
    found["locks"][0]["variant"] = "gpu"
    return {**found, "driver_minimum": "525.60.13"}


def test_as_many_as_the_driver_shows(gpu_params: Params, call: Call, host: Path) -> None:
    (gpu,) = gpu_params["locks"]
    cpu = {**gpu, "variant": "cpu"}
    both, only_cpu = ({**gpu_params, "locks": locks} for locks in ([cpu, gpu], [cpu]))
    assert call(both, check_mode=True)["variant"] == "cpu"
    none = call(gpu_params)
    assert (none["changed"], none["gpus"], (host / "calls").exists()) == (True, None, False)
    for count, version in [(1, "550.54.15"), (8, "550.54.15"), (8, "570.10")]:
        has_gpus(host, count, version)
        result = call(gpu_params)
        assert (result["changed"], result["parts"]) == (True, ["trial"])
        assert result["gpus"] == {"driver": count, "tensorflow": count}
        assert not call(gpu_params)["changed"]  # a ready host starts no TensorFlow
    assert (host / "calls").read_text() == 3 * "GPU all\n"
    assert call(both, check_mode=True)["variant"] == "gpu"
    assert call({**both, "variant": "cpu"}, check_mode=True)["variant"] == "cpu"
    on_cpu = call(only_cpu)
    assert (on_cpu["variant"], on_cpu["gpus"]) == ("cpu", None)


def test_fewer_is_an_error_or_a_warning_and_costs_no_second_download(
    gpu_params: Params, call: Call, host: Path, monkeypatch: Patch
) -> None:
    has_gpus(host, 4, "470.82.01", seen=0)
    message = call(gpu_params)["msg"]
    for part in (
        "TensorFlow 1.0 sees 0 of the 4 GPUs that the driver 470.82.01 shows",
        "470.82.01 is older than 525.60.13: install a newer one (role nvidia_driver)",
        "TensorFlow does not find its CUDA libraries: make the lock with",
        "W0000 gpu_device.cc:1] Cannot dlopen some GPU libraries.",
        "No link was changed.",
    ):
        assert part in message
    assert "nothing to do with it" not in message
    assert not Path(gpu_params["root"], "venv").is_symlink()
    assert call(gpu_params)["failed"]  # nothing has changed
    has_gpus(host, 4)
    fixed = call(gpu_params)
    assert (fixed["changed"], fixed["parts"]) == (True, ["trial", "link"])
    has_gpus(host, 4, "560.1", seen=1)
    message = call(gpu_params)["msg"]
    assert "sees 1 of the 4 GPUs" in message
    assert "It stays in use." in message

    warnings: list[str] = []
    monkeypatch.setattr(role.module.AnsibleModule, "warn", lambda _, text: warnings.append(text))
    asked = [(host / "calls").stat().st_size]  # grows with every question
    lenient = {**gpu_params, "require_gpus": False}
    assert not call(lenient)["changed"]  # what was seen is known
    has_gpus(host, 4, "570.1", seen=2)
    assert call(lenient)["changed"]
    assert not call(lenient)["changed"]
    seen = ["sees 1 of the 4 GPUs", *2 * ["sees 2 of the 4 GPUs"]]
    assert all(part in text for part, text in zip(seen, warnings, strict=True))
    asked.append((host / "calls").stat().st_size)
    assert call(gpu_params)["failed"]
    asked.append((host / "calls").stat().st_size)
    assert [end - start for start, end in pairwise(asked)] == 2 * [len("GPU all\n")]


def test_causes(host: Path, monkeypatch: Patch) -> None:
    has_gpus(host, 2, "525.60.13", text=OPEN)
    driver = role.gpus.detect()
    assert driver == ("525.60.13", 2)
    assert role.gpus.explain(driver, "525.60.13", b"").startswith(
        "see nvidia-smi and the last lines"
    )
    has_gpus(host, 2, "525.60.9")
    (host / "dev" / "nvidia1").unlink()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    causes = role.gpus.explain(
        role.gpus.detect(), "525.60.13", b"Could not load dynamic library 'x'"
    )
    assert causes.startswith("CUDA_VISIBLE_DEVICES is '1' in the")
    for part in ("525.60.9 is older than 525.60.13", "CUDA libraries", "there are 1 device files"):
        assert part in causes
    (host / "proc" / "gpus").rename(host / "proc" / "none")  # then the device files count
    assert role.gpus.detect() == ("525.60.9", 1)
