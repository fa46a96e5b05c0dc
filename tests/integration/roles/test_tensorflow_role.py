"""The role ``tensorflow``: environments, GPUs, the removal of old environments, its playbooks.

No framework is downloaded. Tiny wheels with names such as ``tensorflow-cpu`` replace them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.tensorflow_ansible.cluster.plugins.filter import tensorflow_locks as locks
from ansible_collections.tensorflow_ansible.cluster.plugins.module_utils.tensorflow_setup import (
    environments as setup,
)
from ansible_collections.tensorflow_ansible.cluster.plugins.modules import (
    tensorflow_cleanup as cleanup,
)
from ansible_collections.tensorflow_ansible.cluster.plugins.modules import (
    tensorflow_environment,
    tensorflow_host,
)
from uv import find_uv_bin

from tests.support.data_folders import serving, sha256
from tests.support.lab import REPOSITORY, run
from tests.support.role_in_process import RoleInProcess, TaskFailedError
from tests.support.set_up_role import Play, role_task, run_plays

Params = dict[str, Any]
Run = Callable[..., Play]
Call = Callable[..., dict[str, Any]]
Patch = pytest.MonkeyPatch
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


def make_wheel(
    folder: Path,
    version: str,
    body: str = "",
    name: str = "tensorflow-cpu",
    size: int = 0,
    module: str = "",
) -> Path:
    """Create a wheel of a distribution with one module and a file of ``size`` bytes.

    The module is named after the first word of the distribution's name, unless ``module`` is given.
    """
    folder.mkdir(parents=True, exist_ok=True)
    package = module or name.partition("-")[0]
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    files = {
        f"{package}.py": f"__version__ = {version!r}\n{body}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if size:
        files["data"] = "x" * size
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return wheel


def make_lock(path: Path, *wheels: Path) -> Path:
    lines = []
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        hashed = f"--hash=sha256:{sha256(wheel)}"
        lines.append(f"{name.replace('_', '-')}=={version} \\\n    {hashed}\n")
    path.write_text("".join(lines))
    return path


def shown_version(link: str | Path, package: str = "tensorflow") -> str:
    script = f"import {package}; print({package}.__version__)"
    return run(f"{link}/bin/python", "-c", script).stdout.strip()


def with_lock(params: Params, lock: Path) -> Params:
    """Return the role's variables with another lock."""
    return {**params, "tensorflow_requirements": str(lock)}


def with_extra(params: Params, lock: Path, name: str = "script") -> Params:
    """Return the role's variables with packages on top."""
    return {**params, "tensorflow_extra_requirements": str(lock), "tensorflow_environment": name}


@pytest.fixture
def params(tmp_path: Path) -> Params:
    """Return the role's variables for an installation of version 1.0 from a folder of wheels."""
    wheel = make_wheel(tmp_path / "wheels", "1.0")
    fixed = {
        "tensorflow_root": str(tmp_path / "root"),
        "tensorflow_python": sys.executable,
        "tensorflow_uv": find_uv_bin(),
        "tensorflow_wheelhouse": str(wheel.parent),
    }
    return with_lock(fixed, make_lock(tmp_path / "lock.txt", wheel))


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs the role here and returns its result, or a failure's message."""

    def run(params: Params, check_mode: bool = False) -> Params:
        role = RoleInProcess("tensorflow", params, capsys, check_mode)
        try:
            role.run()
        except TaskFailedError as error:
            return {"failed": True, "msg": str(error)}
        result = {**role.variables["tensorflow_installed"], "changed": bool(role.changed)}
        return {**result, "messages": role.messages, "diffs": role.diffs}

    return run


@pytest.fixture
def index(tmp_path: Path, monkeypatch: Patch) -> Iterator[str]:
    """Yield the address, with a password, of an index that serves the fake TensorFlow."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    make_wheel(tmp_path / "index" / "simple" / "tensorflow-cpu", "1.0")
    with serving(tmp_path / "index") as port:
        yield f"http://reader:s3cret@127.0.0.1:{port}/simple"


def environments(params: Params) -> list[str]:
    names: list[str] = setup.names(f"{params['tensorflow_root']}/venvs")
    return names


def packages(venv: str) -> list[str]:
    folder = Path(venv, "lib", f"python{HERE}", "site-packages")
    return sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")


def test_a_fresh_install_and_a_second_run(
    params: Params, call: Call, index: str, monkeypatch: Patch, tmp_path: Path
) -> None:
    """The wheels are from an index, whose address is in no argument of a program."""
    params = {**params, "tensorflow_wheelhouse": "", "tensorflow_index_url": index}
    commands: list[str] = []
    real = tensorflow_environment.run

    def record(words: list[str], *rest: Any) -> Any:
        commands.extend(words)
        return real(words, *rest)

    monkeypatch.setattr(tensorflow_environment, "run", record)
    checked = call(params, check_mode=True)
    assert (checked["changed"], checked["parts"]) == (True, ["base", "link"])
    made, linked = (diff["after"] for diff in checked["diffs"])
    assert f"/venvs/tensorflow-1.0-cpu-py{HERE}-" in made
    assert linked == {"path": f"{params['tensorflow_root']}/venv", "state": "link"}
    assert not Path(params["tensorflow_root"]).exists()
    result = call(params)
    assert (result["version"], result["variant"]) == ("1.0", "cpu"), result
    assert "--require-hashes" in commands
    assert "s3cret" not in json.dumps([commands, result])
    digest = sha256(tmp_path / "lock.txt")[:12]
    assert environments(params) == [f"tensorflow-1.0-cpu-py{HERE}-{digest}"]
    assert os.readlink(result["link"]) == os.path.relpath(result["venv"], params["tensorflow_root"])
    assert shown_version(result["link"]) == "1.0"
    assert packages(result["venv"]) == ["tensorflow.py", "tensorflow_cpu-1.0.dist-info"]
    assert not Path(result["venv"], ".scratch").exists()
    monkeypatch.setattr(
        tensorflow_environment, "run", lambda *_: pytest.fail("a program was started")
    )
    second = call(params)
    assert (second["changed"], second["venv"]) == (False, result["venv"])
    assert second["diffs"] == []


def test_a_child_that_outlives_the_module_keeps_the_lock(
    params: Params, call: Call, monkeypatch: Patch
) -> None:
    folder = Path(params["tensorflow_root"], "venvs")
    folder.mkdir(parents=True)
    with setup.exclusive(str(folder)) as held:
        orphan = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(held,))
    monkeypatch.setattr(setup, "LOCK_WAIT_S", 0.0)
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
        assert result["parts"] == ["base"]
        assert not (venv / "left-over").exists()
        assert shown_version(result["link"]) == "1.0"


def test_new_locks_and_back_and_more_to_import(
    params: Params, call: Call, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(cleanup, "shared_with", lambda _: "")
    monkeypatch.setattr(cleanup, "RECENT_S", -1.0)
    first = call(params)
    wheels = [make_wheel(tmp_path / "wheels", version) for version in ("2.0", "3.0")]
    two, three = (with_lock(params, make_lock(Path(f"{wheel}.txt"), wheel)) for wheel in wheels)
    second = call(two)
    assert (shown_version(second["link"]), shown_version(first["venv"])) == ("2.0", "1.0")
    (lock,) = locks.locks([params["tensorflow_requirements"]], "tensorflow")
    wider = {**params, "__tensorflow_locks": [{**lock, "imports": ["tensorflow", "json"]}]}
    for wanted, part in ((params, "link"), (wider, "trial")):
        result = call(wanted)
        assert (result["changed"], result["parts"], result["removed"]) == (True, [part], [])
        assert shown_version(result["link"]) == "1.0"
    assert not call(wider)["changed"]
    # The environment in use and the previous one stay.
    checked = call(three, check_mode=True)
    assert len(environments(params)) == 2
    third = call(three)
    assert checked["removed"] == third["removed"] == [Path(second["venv"]).name]
    assert checked["diffs"][-1] == third["diffs"][-1]
    assert environments(params) == [Path(made["venv"]).name for made in (first, third)]


def test_what_is_not_good_is_not_linked(params: Params, call: Call, tmp_path: Path) -> None:
    first = call(params)
    for number, (body, message) in enumerate(
        [
            ("tampered", "contains a file that differs from the locked one"),
            ("missing", f"has no compatible wheel for Python {HERE}"),
            ("import no_such_module\n", "No module named 'no_such_module'"),
            ("__version__ = '0.9'\n", "has tensorflow 0.9, but the lock"),
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
        return {"tensorflow_python": str(program)}

    (tmp_path / "file").write_text("")
    limits = "the locked TensorFlow needs 3.10 to 3.13. Install a complete Python 3.10 to 3.13"
    for version in ("3.9.2", "3.14.0"):
        wrong = fake_python(f"echo /x; echo {version}")
        assert f"is Python {version}; {limits}" in call({**params, **wrong})["msg"]
    disk = SimpleNamespace(f_bavail=250, f_frsize=4_000_000)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    for wrong, message in [
        (
            {"tensorflow_python": "python-of-nobody"},
            "there is no program 'python-of-nobody' on this host",
        ),
        ({"tensorflow_python": "true"}, "is not a complete Python 3 (exit code 0). Install a"),
        (fake_python("echo no venv >&2; exit 1"), "(Debian: python3, not python3-minimal)"),
        ({"tensorflow_wheelhouse": "/nowhere"}, "there is no folder /nowhere on this host"),
        (
            {"tensorflow_root": str(tmp_path / "file")},
            "must be a folder that this user may write to",
        ),
        ({}, "1000 MB free, but 1900 MB are needed. Free 900 MB"),
        ({"tensorflow_wheelhouse": ""}, "1000 MB free, but 2400 MB are needed. Free 1400 MB"),
    ]:
        result = call({**params, **wrong})
        assert result["failed"]
        assert message in result["msg"]
    monkeypatch.undo()
    assert not Path(params["tensorflow_root"]).exists()
    folder = Path(params["tensorflow_root"], "venv")
    folder.mkdir(parents=True)
    assert f"{folder} is not a link made by this role. Move this file away" in call(params)["msg"]
    folder.rmdir()
    before = locks.locks([params["tensorflow_requirements"]], "tensorflow")
    with (tmp_path / "lock.txt").open("a") as stream:
        stream.write("# more\n")
    locked = {"__tensorflow_locks": before}
    assert "was changed during the run" in call({**params, **locked})["msg"]


def test_an_interpreter_behind_a_link(params: Params, call: Call, tmp_path: Path) -> None:
    """The environment refers to the interpreter itself, not to uv's link in ~/.local/bin.

    Through that link, Python would not find its standard library.
    """
    link = tmp_path / "bin" / "python3"
    link.parent.mkdir()
    link.symlink_to(sys.executable)
    made = call({**params, "tensorflow_python": str(link)})
    lines = Path(made["venv"], "pyvenv.cfg").read_text().splitlines()
    assert f"home = {Path(sys.executable).resolve().parent}" in lines


#: Keras with JAX reads its backend from the environment, and writes its settings.
KERAS = """import os
assert os.environ["KERAS_BACKEND"] == "jax" and os.environ["JAX_PLATFORMS"] == "cpu"
open(os.path.join(os.environ["KERAS_HOME"], "keras.json"), "w").close()
"""


def test_jax_next_to_tensorflow(params: Params, call: Call, tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path / "wheels", "0.10.2", name="jax")]
    wheels.append(make_wheel(tmp_path / "wheels", "3.15.1", KERAS, name="keras"))
    lock = make_lock(tmp_path / "jax.txt", *wheels)
    wanted = with_lock({**params, "train_job_framework": "jax"}, lock)
    tensorflow, jax = call(params), call(wanted)
    assert (jax["framework"], jax["version"], jax["variant"]) == ("jax", "0.10.2", "cpu")
    assert jax["link"] == f"{params['tensorflow_root']}/venv-jax"
    assert Path(jax["venv"]).name.startswith(f"jax-0.10.2-cpu-py{HERE}-")
    marker = json.loads(Path(jax["link"], "tensorflow-venv.json").read_text())
    assert (marker["framework"], marker["trial"]["imports"]) == ("jax", ["jax", "keras"])
    assert not call(wanted)["changed"]
    assert not call(params)["changed"]
    for made, modules in ((tensorflow, ["tensorflow.py"]), (jax, ["jax.py", "keras.py"])):
        assert [name for name in packages(made["venv"]) if name.endswith(".py")] == modules
        assert not list(Path(made["venv"]).rglob("keras.json"))


@pytest.mark.parametrize("framework", ["torch", "none"])
def test_an_environment_without_packages(
    params: Params, call: Call, tmp_path: Path, framework: str
) -> None:
    wanted = {**params, "tensorflow_framework": framework, "tensorflow_requirements": ""}
    bare = call(wanted)
    assert (bare["framework"], bare["version"], bare["parts"]) == ("none", "", ["base", "link"])
    assert Path(bare["link"]).name == "venv-bare"
    assert packages(bare["venv"]) == []
    (said,) = bare["messages"]
    assert f"No packages are installed for the framework {framework}, only an env" in said
    assert not call(wanted)["changed"]
    extra = make_wheel(tmp_path / "wheels", "1.5", name="frobnicate")
    top = call(with_extra(wanted, make_lock(tmp_path / "extra.txt", extra)))
    assert top["parts"] == ["extra", "link"]
    assert shown_version(top["link"], "frobnicate") == "1.5"
    refused = call({**params, "tensorflow_framework": framework})
    assert f"for the framework {framework} no lock is installed: remove" in refused["msg"]


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
    # Packages in both locks are installed only once.
    there = ["frobnicate-1.5.dist-info", "frobnicate.py", "tensorflow.pth"]
    assert packages(result["venv"]) == there
    assert not call(below)["changed"]  # the other link stays
    assert "frobnicate.py" not in packages(plain["venv"])

    bad = make_wheel(wheels, "1.0", "raise ImportError", "tensorflow-frob")
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
    assert second["parts"] == ["base", "extra", "link"]
    assert (shown_version(second["link"]), shown_version(result["venv"])) == ("2.0", "1.0")


# GPUs. All of them are fakes.

VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Nov 21 08:00:00 UTC 2026\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  525.60.13  Release Build\n"
#: A fake TensorFlow that sees the number of GPUs in a file, and logs that it was asked.
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


def has_gpus(host: Path, count: int, version: str = "550.54.15", seen: int | None = None) -> None:
    """Set the GPUs that the driver of a host shows, and those that its TensorFlow sees."""
    for index in range(count):
        (host / "proc" / "gpus" / f"0000:0{index}:00.0").mkdir(parents=True, exist_ok=True)
        (host / "dev" / f"nvidia{index}").touch()
    (host / "proc" / "version").write_text(VERSION.format(version))
    (host / "seen").write_text(str(count if seen is None else seen))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Return the folder of a host without GPUs."""
    (tmp_path / "dev").mkdir()
    monkeypatch.setattr(tensorflow_host, "PROC", str(tmp_path / "proc"))
    monkeypatch.setattr(tensorflow_host, "DEV", str(tmp_path / "dev"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


@pytest.fixture
def gpu_params(params: Params, host: Path) -> Params:
    """Return the role's variables for a fake TensorFlow with CUDA."""
    wheel = make_wheel(host / "wheels", "1.0", SEES.format(host))
    found = with_lock(params, make_lock(host / "gpu.txt", wheel))
    (lock,) = locks.locks([found["tensorflow_requirements"]], "tensorflow")
    return {**found, "__tensorflow_locks": [{**lock, "variant": "gpu"}]}


#: Sees the GPUs in the file ``seen``, as JAX does, and notes the settings of the trial.
JAX_SEES = """import os, pathlib
def local_devices(backend):
    home = pathlib.Path("{0}")
    names = "CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS", "XLA_PYTHON_CLIENT_PREALLOCATE"
    (home / "calls").write_text(" ".join(os.environ.get(name, "-") for name in names))
    seen = int((home / "seen").read_text())
    if not seen:
        raise RuntimeError("Unable to load cuDNN. Is it installed?")
    return [backend] * seen
"""


def test_gpus_that_jax_sees(params: Params, call: Call, host: Path) -> None:
    has_gpus(host, 2, seen=0)
    wheels = [make_wheel(host / "wheels", "0.10.2", JAX_SEES.format(host), name="jax")]
    wheels.append(make_wheel(host / "wheels", "1", name="jax-cuda12-plugin", module="plugin"))
    lock = make_lock(host / "jax-gpu.txt", *wheels)
    wanted = with_lock({**params, "train_job_framework": "jax"}, lock)
    message = call(wanted)["msg"]
    assert "JAX 0.10.2 sees 0 of the 2 GPUs" in message
    assert "JAX does not find its CUDA libraries: create the lock with jax[cuda12]" in message
    assert "Unable to load cuDNN" in message
    has_gpus(host, 2)
    # The memory of the GPUs stays free.
    found = call(wanted)
    assert (found["variant"], found["gpus"]) == ("gpu", {"driver": 2, "seen": 2})
    assert (host / "calls").read_text() == "-  false"


def test_as_many_as_the_driver_shows(gpu_params: Params, call: Call, host: Path) -> None:
    (gpu,) = gpu_params["__tensorflow_locks"]
    cpu = {**gpu, "variant": "cpu"}
    both, only_cpu = ({**gpu_params, "__tensorflow_locks": each} for each in ([cpu, gpu], [cpu]))
    assert call(both, check_mode=True)["variant"] == "cpu"
    none = call(gpu_params)
    assert (none["changed"], none["gpus"], (host / "calls").exists()) == (True, None, False)
    for count, version in [(1, "550.54.15"), (8, "550.54.15"), (8, "570.10")]:
        has_gpus(host, count, version)
        result = call(gpu_params)
        assert (result["changed"], result["parts"]) == (True, ["trial"])
        assert result["gpus"] == {"driver": count, "seen": count}
        assert not call(gpu_params)["changed"]  # a ready host starts no TensorFlow
    assert (host / "calls").read_text() == 3 * "GPU all\n"
    assert call(both, check_mode=True)["variant"] == "gpu"
    assert call({**both, "tensorflow_variant": "cpu"}, check_mode=True)["variant"] == "cpu"
    on_cpu = call(only_cpu)
    assert (on_cpu["variant"], on_cpu["gpus"]) == ("cpu", None)


def test_fewer_is_an_error_or_a_warning_and_costs_no_second_download(
    gpu_params: Params, call: Call, host: Path, monkeypatch: Patch
) -> None:
    has_gpus(host, 4, "470.82.01", seen=0)
    message = call(gpu_params)["msg"]
    for part in (
        "TensorFlow 1.0 sees 0 of the 4 GPUs that the driver 470.82.01 shows",
        "470.82.01 is older than 525.60.13: install a newer driver (role nvidia_driver)",
        "TensorFlow does not find its CUDA libraries: create the lock with",
        "W0000 gpu_device.cc:1] Cannot dlopen some GPU libraries.",
        "No link was changed.",
    ):
        assert part in message
    assert "nothing to do with it" not in message
    assert not Path(gpu_params["tensorflow_root"], "venv").is_symlink()
    assert call(gpu_params)["failed"]  # nothing has changed
    has_gpus(host, 4)
    fixed = call(gpu_params)
    assert (fixed["changed"], fixed["parts"]) == (True, ["trial", "link"])
    has_gpus(host, 4, "560.1", seen=1)
    message = call(gpu_params)["msg"]
    assert "sees 1 of the 4 GPUs" in message
    assert "The environment stays in use." in message

    calls = host / "calls"
    before = calls.read_text()
    lenient = {**gpu_params, "tensorflow_require_gpus": False}
    results = [call(lenient)]  # the number of GPUs is stored
    has_gpus(host, 4, "570.1", seen=2)
    results += [call(lenient), call(lenient)]
    assert [result["changed"] for result in results] == [False, True, False]
    warnings = [text for result in results for text in result["messages"]]
    seen = ["sees 1 of the 4 GPUs", *2 * ["sees 2 of the 4 GPUs"]]
    assert all(part in text for part, text in zip(seen, warnings, strict=True))
    assert calls.read_text() == before + "GPU all\n"
    assert call(gpu_params)["failed"]
    assert calls.read_text() == before + 2 * "GPU all\n"


def test_causes(gpu_params: Params, call: Call, host: Path, monkeypatch: Patch) -> None:
    lenient = {**gpu_params, "tensorflow_require_gpus": False}
    monkeypatch.setattr(tensorflow_environment, "MISSING_LIBRARY", ())
    has_gpus(host, 2, seen=0)
    (host / "proc" / "version").write_text(OPEN)
    assert tensorflow_host.driver() == {"version": "525.60.13", "gpus": 2}
    assert "shows: check nvidia-smi and the last lines" in call(lenient)["messages"][-1]
    monkeypatch.undo()
    for name, folder in (("PROC", "proc"), ("DEV", "dev")):
        monkeypatch.setattr(tensorflow_host, name, str(host / folder))
    has_gpus(host, 2, "525.60.9", seen=0)
    (host / "dev" / "nvidia1").unlink()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    causes = call(lenient)["messages"][-1]
    assert "shows: CUDA_VISIBLE_DEVICES is '1' in the" in causes
    for part in ("525.60.9 is older than 525.60.13", "CUDA libraries", "there are 1 device files"):
        assert part in causes
    (host / "proc" / "gpus").rename(host / "proc" / "none")  # the device files are then counted
    assert tensorflow_host.driver() == {"version": "525.60.9", "gpus": 1}


# Old environments are removed after a switch, the others on request.

WAIT = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: Patch) -> Path:
    # Whatever filesystem the tests' own folder is on.
    monkeypatch.setattr(cleanup, "shared_with", lambda _: "")
    (tmp_path / "root" / "venvs").mkdir(parents=True)
    return tmp_path / "root"


def faked(root: Path, version: str, used: int = 0, base: str = "") -> str:
    """Create an environment that was last linked at time ``used``; if 0, it is unfinished."""
    name = f"extra-{'1' * 12}" if base else f"tensorflow-{version}-cpu-py3.11-{'0' * 12}"
    marker = root / "venvs" / name / "tensorflow-venv.json"
    marker.parent.mkdir()
    if used:
        content = {"requirements_sha256": "", "base": base or name}
        marker.write_text(json.dumps(content))
        os.utime(marker, (used, used))
    return name


def old(root: Path, name: str, before: str, keep: int = 2, check: bool = False) -> Any:
    """Return the removed environments, and the kept ones with the reason, after a switch."""
    params = {"root": str(root), "needed": [name], "link": "venv", "previous": before, "keep": keep}
    return cleanup.remove_old(params, check)


def test_what_is_wanted_linked_or_was_in_use_last_stays(root: Path) -> None:
    one, two, three = (faked(root, f"{number}.0", number) for number in (1, 2, 3))
    assert old(root, three, before=two, keep=0) == ([], [])
    # The previous target of the link was used last, whatever the time of its marker.
    assert old(root, three, before=one, check=True) == ([two], [])
    assert old(root, three, before=two, check=True) == ([one], [])
    assert old(root, three, before=two, keep=1, check=True) == ([one, two], [])
    assert cleanup.finished_at(str(root / "venvs")) == {one: 1.0, two: 2.0, three: 3.0}
    # Environments that another link needs stay, together with those below them.
    extra = faked(root, "", 1, base=one)
    (root / "paper").symlink_to(f"venvs/{extra}")
    assert old(root, three, before=two) == ([], [])
    (root / "paper").unlink()
    # Unfinished environments are removed, but only those of the role.
    half = faked(root, "0.9")
    (root / "venvs" / "my-own").mkdir()
    assert old(root, three, before=two) == (sorted([half, one, extra]), [])
    assert {*os.listdir(root / "venvs")} == {two, three, "my-own", ".lock"}


def test_what_another_run_is_about_to_link_stays(root: Path) -> None:
    """It was created or requested a moment ago, together with TensorFlow's environment below."""
    one, two = (faked(root, f"{number}.0", number) for number in (1, 2))
    extra = faked(root, "", int(time.time()), base=one)
    assert old(root, two, before="", keep=1) == ([], [])
    os.utime(root / "venvs" / extra / setup.MARKER, (1, 1))
    assert old(root, two, before="", keep=1) == (sorted([one, extra]), [])


def waiting(*words: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a process that waits until its input ends."""
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def test_what_a_process_uses_stays(root: Path, tmp_path: Path) -> None:
    """A process uses its program, files loaded through the link, and its working directory."""
    names = [faked(root, f"{number}.0", number) for number in (1, 2, 3, 4)]
    command, loaded, folder = (root / "venvs" / name for name in names[:3])
    (command / "python").symlink_to(sys.executable)
    (loaded / "part.so").write_bytes(b"\0" * 4096)  # a compiled part, like TensorFlow's
    script = tmp_path / "job.py"  # a command line without a path to the environment
    script.write_text(
        f"import mmap; f = open({str(loaded / 'part.so')!r}, 'rb');"
        f" m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); f.close(); {WAIT}"
    )
    processes = [
        waiting(str(command / "python"), "-c", WAIT),
        waiting(sys.executable, str(script)),
        waiting(sys.executable, "-c", WAIT, cwd=folder),
    ]
    removed, notes = old(root, names[3], before="", keep=1)
    for process in processes:
        process.communicate()
    assert removed == []
    for name, process, note in zip(names[:3], processes, notes, strict=True):
        assert f"{name} was kept, because process {process.pid} (python" in note
    assert old(root, names[3], before="", keep=1) == (names[:3], [])


def test_another_users_process_under_the_root_counts_for_all(
    root: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """Its memory map is hidden, so the environment that it has loaded is unknown."""
    process, read = tmp_path / "proc" / "7", cleanup._read
    hidden = str(process / "maps")
    monkeypatch.setattr(cleanup, "PROC", str(process.parent))
    monkeypatch.setattr(cleanup, "_read", lambda path: None if path == hidden else read(path))
    process.mkdir(parents=True)
    for command, used in [
        ("/usr/bin/python3\0/usr/bin/service\0", {}),
        (f"{root}/venv/bin/python\0x.py", {"name": "process 7 (python)"}),
    ]:
        (process / "cmdline").write_bytes(command.encode())
        assert cleanup.in_use(str(root), ["name"]) == used


def test_a_shared_folder_and_one_that_cannot_be_removed(root: Path, monkeypatch: Patch) -> None:
    one, two = (faked(root, f"{number}.0", number) for number in (1, 2))
    with monkeypatch.context() as patched:
        patched.setattr(cleanup, "shared_with", lambda _: "others may use them")
        stay = f"Old environments in {root}/venvs were kept (1), because others may use them."
        assert old(root, two, before="", keep=1) == ([], [stay])

    def fail(path: str) -> None:
        raise OSError(f"{path} is busy")

    monkeypatch.setattr(setup, "shutil", SimpleNamespace(rmtree=fail))
    removed, notes = old(root, two, before="", keep=1)
    assert (removed, "could not be removed" in notes[0]) == ([], True)
    # A partly removed environment does not count as finished.
    assert cleanup.finished_at(str(root / "venvs")) == {one: 0.0, two: 2.0}


def test_everything_goes_on_request_but_what_runs(root: Path) -> None:
    one, two = (faked(root, f"{number}.0", number) for number in (1, 2))
    for link, name in (("paper", one), ("venv", two)):
        (root / link).symlink_to(f"venvs/{name}")
    for folder in ("jobs", "venvs/.sent-host", "venvs/my-own"):
        (root / folder).mkdir()
    process = waiting(sys.executable, "-c", WAIT, cwd=root / "venvs" / two)
    checked = cleanup.remove_all(str(root), check_only=True)
    assert (root / "paper").is_symlink()
    assert cleanup.remove_all(str(root), check_only=False) == checked
    gone, notes = checked
    assert gone == [f"{root}/{path}" for path in ("paper", "venvs/.sent-host", f"venvs/{one}")]
    assert notes == [
        f"{two} was kept, because process {process.pid} (python) uses it.",
        f"{root} was kept: it contains jobs, venv.",
    ]
    process.communicate()
    (root / "venvs/my-own").rmdir()
    jobs = [f"{root} was kept: it contains jobs."]
    rest = [f"{root}/venv", f"{root}/venvs/{two}"]
    assert cleanup.remove_all(str(root), check_only=False) == (rest, jobs)
    assert cleanup.remove_all(str(root), check_only=False) == ([], jobs)
    assert os.listdir(root) == ["jobs"]


def test_folders_that_other_machines_may_share(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(cleanup, "MOUNTS", str(tmp_path / "mountinfo"))
    for path, filesystem, message in [
        ("/home/ada/train/venvs", "nfs4", "other machines may use them (filesystem nfs4)"),
        ("/home/ada/train/venvs", "fuse.sshfs", "(filesystem fuse.sshfs)"),
        ("/home/ada/train/venvs", "xfs", ""),
        ("/homes/ada/train/venvs", "nfs4", ""),
        ("/home/a b/train/venvs", "xfs", "it is a separate mount, which others may use"),
    ]:
        (tmp_path / "mountinfo").write_text(
            "21 1 8:1 / / rw - overlay /dev/sda1 rw\n"
            f"30 21 0:40 / /home rw shared:1 - {filesystem} server:/home rw\n"
            "31 30 8:2 / /home/a\\040b/train/venvs rw - ext4 /dev/sdb1 rw\n"
        )
        found = cleanup.shared_with(path)
        assert message in found
        assert bool(message) == bool(found)


# In playbooks: wheels on the host, from an index, and from the control node.


@pytest.fixture
def play(tmp_path: Path, monkeypatch: Patch) -> Run:
    """Return a function that runs a playbook on this machine, with a lock of the fake."""
    monkeypatch.setenv("PIP_RETRIES", "1")
    lock = make_lock(tmp_path / "lock.txt", make_wheel(tmp_path / "wheels", "1.0"))
    common = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "tensorflow_root": str(tmp_path / "root"),
        "tensorflow_python": sys.executable,
        "tensorflow_requirements": str(lock),
    }

    def run(
        *options: str, entry: str = "main", hosts: Sequence[dict[str, Any]] = ({},), **extra: Any
    ) -> Play:
        by_name = {f"worker-{number}": variables for number, variables in enumerate(hosts)}
        inventory = tmp_path / "hosts.json"
        inventory.write_text(json.dumps({"worker": {"hosts": by_name, "vars": common}}))
        # The role runs on every inventory host here, while setup.yml selects one per machine.
        task = role_task("tensorflow", entry)
        play: dict[str, Any] = {"hosts": "all", "gather_facts": False, "tasks": [task]}
        if entry == "wheelhouse":
            play = {"ansible.builtin.import_playbook": f"{REPOSITORY}/playbooks/wheelhouse.yml"}
        return run_plays(tmp_path, inventory, [play], "-e", json.dumps(extra), *options)

    return run


def test_what_is_refused_before_anything_is_done(play: Run, tmp_path: Path) -> None:
    """Each host has a different mistake, and gets its own message."""
    wheels = tmp_path / "wheels"
    top = make_wheel(wheels, "1.5", name="frobnicate")
    other = make_wheel(wheels, "0.9", name="tensorflow-cpu")
    clash = make_lock(tmp_path / "clash.txt", top, other)
    absent = make_lock(tmp_path / "absent.txt", make_wheel(tmp_path / "away", "1.0"), top)
    top.unlink()
    source = {"tensorflow_wheelhouse_source": str(wheels)}
    both = {"tensorflow_wheelhouse": str(wheels), **source}
    none, clashing = ({"tensorflow_extra_requirements": name} for name in ("none.txt", str(clash)))
    without = {"tensorflow_requirements": str(absent), **source}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tensorflow_variant": "tpu"}, "value of tensorflow_variant must be one of"),
        ({"tensorflow_variant": "gpu"}, "tensorflow_variant is gpu, but the lock is"),
        ({"tensorflow_requirements": "my.txt"}, "/my.txt on the control node (a relative path"),
        ({"tensorflow_root": "train"}, "tensorflow_root is 'train': use an absolute path"),
        ({"tensorflow_keep": -1}, "tensorflow_keep is -1: set the number of environments to keep"),
        ({"tensorflow_python_supported": ["3.10"]}, "supported is ['3.10']: set the oldest and"),
        (both, "tensorflow_wheelhouse and tensorflow_wheelhouse_source are both set"),
        ({"tensorflow_wheelhouse_source": "wheels"}, "is 'wheels': use an absolute path"),
        (without, f"{wheels} on the control node has no wheel for Python"),
        (without, "of frobnicate 1.5. Fill this folder with playbooks/wheelhouse.yml"),
        (clashing, "tensorflow-cpu 0.9 (installed: 1.0). Lock the packages within"),
        (none, "tensorflow_extra_requirements: there is no lock file"),
    ]
    for name in ("jobs", "venvs", "a/b", "..", "-x", ""):
        cases.append(({"tensorflow_environment": name}, f"is '{name}': use letters, digits"))
    for url in ("pypi.s3cret/simple", "https:s3cret"):
        cases.append(({"tensorflow_index_url": url}, "index_url is not the address of"))
    done = play(hosts=[wrong for wrong, _ in cases])
    assert {row["failed"] for row in done.counts.values()} == {1}, done.shown
    for number, (_, message) in enumerate(cases):
        shown = [part for part in done.shown.split("[ERROR]") if message in part]
        assert any(f"worker-{number}]: FAILED" in part for part in shown), message
    assert "s3cret" not in done.shown
    assert not (tmp_path / "root").exists()


UNREACHABLE = "http://reader:s3cret@127.0.0.1:1/simple"


def test_password_of_the_index_stays_secret(play: Run, index: str, tmp_path: Path) -> None:
    bad = {"tensorflow_index_url": UNREACHABLE, "tensorflow_root": str(tmp_path / "bad")}
    done = play("-vvv", hosts=[{"tensorflow_index_url": index}, bad])
    assert [row["failed"] for row in done.counts.values()] == [0, 1], done.shown
    assert "this host cannot reach the package index. Set tensorflow_index_url" in done.shown
    assert "Connection refused" in done.shown  # pip's own message
    assert not (tmp_path / "bad" / "venv").is_symlink()
    assert shown_version(tmp_path / "root" / "venv") == "1.0"
    assert "s3cret" not in done.shown


def test_a_folder_of_wheels_on_the_control_node(play: Run, index: str, tmp_path: Path) -> None:
    """The playbook fills it from an index, keeps intact wheels and replaces damaged ones."""
    wheel = tmp_path / "house" / "tensorflow_cpu-1.0-py3-none-any.whl"
    fill = {
        "entry": "wheelhouse",
        "tensorflow_wheelhouse_pythons": [HERE],
        "tensorflow_wheelhouse_source": str(wheel.parent),
        "tensorflow_requirements": str(tmp_path / "lock.txt"),
    }
    checked = play("--check", **fill)
    assert (checked.code, wheel.parent.exists()) == (0, False), checked.shown
    assert checked.changed > 0
    refused = play("-vvv", **fill, tensorflow_index_url=UNREACHABLE)
    assert refused.code != 0
    assert "pip could not download the wheels of" in refused.shown
    assert "Connection refused" in refused.shown
    filled = play("-vvv", **fill, tensorflow_index_url=index)
    assert filled.code == 0, filled.shown
    assert "s3cret" not in refused.shown + filled.shown
    # Intact wheels need no index; damaged ones are downloaded again.
    assert play(**fill, tensorflow_index_url=UNREACHABLE).changed == 0
    good = wheel.read_bytes()
    wheel.write_bytes(b"x" * len(good))
    assert play(**fill, tensorflow_index_url=index).code == 0
    assert wheel.read_bytes() == good


def test_what_the_control_node_sends_is_installed_and_removed(play: Run, tmp_path: Path) -> None:
    """It sends wheels of TensorFlow and of packages on top to two hosts of one machine."""
    top = make_wheel(tmp_path / "wheels", "1.5", name="frobnicate")
    large = make_wheel(tmp_path / "wheels", "1.0", size=20_000_000)
    given = {
        "hosts": [{}, {}],
        "tensorflow_wheelhouse_source": str(tmp_path / "wheels"),
        "tensorflow_requirements": str(make_lock(tmp_path / "large.txt", large)),
        "tensorflow_environment": "paper",
        "tensorflow_extra_requirements": str(make_lock(tmp_path / "extra.txt", top)),
    }
    done = play(**given)
    assert done.code == 0, done.shown
    for step in ("Install TensorFlow", "Install packages on top of it"):
        installing = done.shown.split(f": Install | {step}]")[1].split("TASK")[0]
        assert (installing.count("changed: "), installing.count("ok: ")) == (1, 1)
    assert f"(item={large.name})" in done.shown
    assert f"(item={top.name})" not in done.shown  # in the archive
    link = tmp_path / "root" / "paper"
    assert (shown_version(link), shown_version(link, "frobnicate")) == ("1.0", "1.5")
    there = sorted(path.name for path in link.parent.glob("venvs/.*"))
    assert there == [".bin", ".cache", ".lock"]
    assert play(**given).changed == 0

    (link.parent / "jobs").mkdir()
    done = play(entry="remove")
    assert (done.code, done.changed) == (0, 1), done.shown
    assert "root was kept: it contains jobs." in done.shown
    assert [path.name for path in link.parent.iterdir()] == ["jobs"]
