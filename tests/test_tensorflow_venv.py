"""The role ``tensorflow``: module, action plugin, playbook and locks.

No TensorFlow is downloaded: a tiny wheel that calls itself ``tensorflow-cpu`` stands for it.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible.module_utils.testing import patch_module_args

REPO = Path(__file__).resolve().parent.parent
ROLE = REPO / "roles" / "tensorflow"
MODULE_PATH = ROLE / "library" / "tensorflow_venv.py"
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
ANSIBLE_PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


module = load(MODULE_PATH, "role_tensorflow_module")
action = load(ROLE / "action_plugins" / "tensorflow_venv.py", "role_tensorflow_action")


def make_wheel(folder: Path, version: str, body: str = "") -> Path:
    """A wheel of the distribution tensorflow-cpu with the one module ``tensorflow``."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"tensorflow_cpu-{version}.dist-info"
    files = {
        "tensorflow.py": f"__version__ = {version!r}\n{body}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tensorflow-cpu\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    wheel = folder / f"tensorflow_cpu-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return wheel


def make_lock(path: Path, wheel: Path) -> Path:
    version = wheel.name.split("-")[1]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    path.write_text(f"tensorflow-cpu=={version} \\\n    --hash=sha256:{digest}\n")
    return path


@pytest.fixture(scope="session")
def pip_zip(tmp_path_factory: pytest.TempPathFactory) -> str:
    archive: str = action.pack_pip(str(tmp_path_factory.mktemp("pip")), "3.10.0")
    return archive


@pytest.fixture
def params(tmp_path: Path, pip_zip: str) -> dict[str, Any]:
    """Arguments for an installation of version 1.0 from a folder of wheels."""
    wheel = make_wheel(tmp_path / "wheels", "1.0")
    return with_lock(
        {
            "root": str(tmp_path / "root"),
            "python": sys.executable,
            "supported_python": ["3.10", "3.13"],
            "wheelhouse": str(wheel.parent),
            "pip_zip": pip_zip,
        },
        make_lock(tmp_path / "lock.txt", wheel),
    )


def with_lock(params: dict[str, Any], lock: Path) -> dict[str, Any]:
    described = action.describe_lock(str(lock))
    return {**params, "locks": [described], "lock_file": str(lock)}


Call = Callable[..., dict[str, Any]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the module in this process; returns its result."""

    def run(params: dict[str, Any], check_mode: bool = False) -> dict[str, Any]:
        arguments = {**params, "_ansible_check_mode": check_mode}
        with patch_module_args(arguments), pytest.raises(SystemExit):
            module.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return result

    return run


def shown_version(link: str) -> str:
    command = [f"{link}/bin/python", "-c", "import tensorflow; print(tensorflow.__version__)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def environments(root: str) -> list[str]:
    folder = Path(root, "venvs")
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())


# The module


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
    monkeypatch.setattr(module, "_run", lambda *_: pytest.fail("a program was started"))
    second = call(params)
    assert not second["changed"]
    assert not second["installed"]
    assert second["venv"] == first["venv"]


def test_two_at_once_install_once(params: dict[str, Any], tmp_path: Path) -> None:
    arguments = tmp_path / "arguments.json"
    arguments.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": params}))
    lock = Path(params["root"], "venvs", ".lock")
    lock.parent.mkdir(parents=True)
    with module.exclusive(str(lock)):
        started = [
            subprocess.Popen(
                [sys.executable, str(MODULE_PATH), str(arguments)], stdout=subprocess.PIPE
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
    with module.exclusive(lock) as held:
        orphan = subprocess.Popen(
            [sys.executable, "-c", child],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(held,),
        )
        assert orphan.stdout is not None
        assert orphan.stdout.readline() == b"up\n"
    assert module._busy(lock)
    orphan.communicate()
    assert not module._busy(lock)


def test_waiting_has_a_limit(
    params: dict[str, Any], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOCK_WAIT_S", 0.0)
    lock = Path(params["root"], "venvs", ".lock")
    lock.parent.mkdir(parents=True)
    with module.exclusive(str(lock)):
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
    monkeypatch.setattr(module.os, "statvfs", lambda _: disk)
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
    monkeypatch.setattr(module, "NVIDIA_SIGNS", (str(tmp_path / "none"),))
    assert call(both, check_mode=True)["variant"] == "cpu"
    monkeypatch.setattr(module, "NVIDIA_SIGNS", (str(tmp_path / "none"), params["lock_file"]))
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
    real = module._run

    def record(command: list[str], held: int, *more: Any, **options: Any) -> Any:
        calls.append((command, *more))
        return real(command, held, *more, **options)

    monkeypatch.setattr(module, "_run", record)
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


# The control node's half


def test_pip_runs_from_the_archive(pip_zip: str) -> None:
    command = [sys.executable, "-I", f"{pip_zip}/pip", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert pip_zip in said


def test_pip_must_fit_the_host(tmp_path: Path) -> None:
    with pytest.raises(AnsibleActionFail, match=r"the host has 3\.6\.9: take the pip that is"):
        action.pack_pip(str(tmp_path), "3.6.9")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keras==3.0\n", "locks no TensorFlow"),
        ("tensorflow==1\ntensorflow_cpu==1\n", "locks tensorflow and tensorflow-cpu"),
        ("tensorflow>=2\n", "locks no TensorFlow"),
    ],
)
def test_lock_without_one_tensorflow_is_refused(tmp_path: Path, text: str, said: str) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(text)
    with pytest.raises(AnsibleActionFail, match=said):
        action.describe_lock(str(lock))


# The locks of this repository


def test_one_tensorflow_in_both_variants() -> None:
    cpu, gpu = (action.describe_lock(str(ROLE / "files" / f"{v}.txt")) for v in ("cpu", "gpu"))
    assert (cpu["variant"], gpu["variant"]) == ("cpu", "gpu")
    assert cpu["version"] == gpu["version"]
    assert cpu["imports"] == ["tensorflow", "tf_keras", "tensorboard", "sklearn"] == gpu["imports"]


LOCKS = [*sorted((ROLE / "files").glob("*.txt")), *sorted((REPO / "requirements").glob("*.txt"))]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_locks_have_hashes_and_name_no_place(lock: Path) -> None:
    text = lock.read_text()
    requirements = [line for line in text.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    assert requirements
    for line in requirements:
        assert re.match(r"[\w.-]+(\[[\w,-]+\])?==[\w.!+]+( ; .*)? \\$", line), line
    assert text.count(" \\\n    --hash=sha256:") >= len(requirements)
    assert not re.search(r"://|(?m:^\s*-)(?!-hash=sha256:)|@ |/", text)


@pytest.mark.parametrize("name", ["control", "dev"])
def test_ansible_core_by_python(name: str) -> None:
    text = (REPO / "requirements" / f"{name}.txt").read_text()
    assert re.search(r"^ansible-core==2\.19\.\d+ ; python_full_version < '3\.12' ", text, re.M)
    assert re.search(r"^ansible-core==2\.21\.\d+ ; python_full_version >= '3\.12' ", text, re.M)


# The playbook


Play = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run playbooks/setup.yml for two ranks on this machine, with a lock of the stand-in."""
    wheel = make_wheel(tmp_path / "wheels", "1.0")
    lock = make_lock(tmp_path / "lock.txt", wheel)
    hosts: dict[str, dict[str, str]] = {"worker-0": {}, "worker-1": {}}
    common = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "tensorflow_root": str(tmp_path / "root"),
        "tensorflow_python": sys.executable,
    }
    inventory = tmp_path / "hosts.json"
    inventory.write_text(json.dumps({"worker": {"hosts": hosts, "vars": common}}))

    def run(*options: str, inventory: Path = inventory, **extra: str) -> Any:
        variables = {"tensorflow_requirements": str(lock), **extra}
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "COLUMNS": "1000",
            "PIP_RETRIES": "1",
        }
        command = [str(ANSIBLE_PLAYBOOK), "-i", str(inventory), "playbooks/setup.yml", *options]
        return subprocess.run(
            [*command, "-e", json.dumps(variables)],
            cwd=REPO,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def counts(output: str, word: str) -> dict[str, int]:
    """A column of the recap, by host."""
    return {
        host: int(count)
        for host, count in re.findall(rf"^(worker-\d)\s+: .*\b{word}=(\d+)", output, re.M)
    }


def test_two_ranks_of_a_machine_are_set_up_once(play: Play, tmp_path: Path) -> None:
    wheels = str(tmp_path / "wheels")
    looked = play("--check", tensorflow_wheelhouse=wheels)
    assert looked.returncode == 0, looked.stdout + looked.stderr
    assert not (tmp_path / "root").exists()
    first = play(tensorflow_wheelhouse=wheels)
    assert first.returncode == 0, first.stdout + first.stderr
    assert sorted(counts(first.stdout, "changed").values()) == [0, 1]
    assert shown_version(str(tmp_path / "root" / "venv")) == "1.0"
    second = play(tensorflow_wheelhouse=wheels)
    assert second.returncode == 0
    assert counts(second.stdout, "changed") == {"worker-0": 0, "worker-1": 0}


def test_inventory_without_ranks_fails(play: Play, tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps({"worker": {}}))
    done = play(inventory=empty)
    assert done.returncode != 0
    assert f"The inventory ({empty}) has no host in chief, worker, ps or evaluator" in done.stdout


def test_wrong_arguments_fail_before_anything_is_done(play: Play, tmp_path: Path) -> None:
    cases = {
        "tensorflow_variant": ("tpu", "value of tensorflow_variant must be one of"),
        "tensorflow_requirements": ("my.txt", "there is no lock file my.txt on the control node"),
    }
    for name, (value, said) in cases.items():
        done = play(**{name: value})
        assert done.returncode != 0
        assert said in done.stdout + done.stderr
    gpu = play(tensorflow_variant="gpu")
    assert "tensorflow_variant is gpu, but the lock is" in gpu.stdout
    assert not (tmp_path / "root").exists()


class Index(SimpleHTTPRequestHandler):
    """A package index that wants a password."""

    def do_GET(self) -> None:
        wanted = base64.b64encode(b"reader:s3cret").decode()
        if self.headers.get("Authorization") == f"Basic {wanted}":
            super().do_GET()
        else:
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic realm=index")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """Host and port of an index that serves the stand-in."""
    make_wheel(tmp_path / "index" / "simple" / "tensorflow-cpu", "1.0")
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Index, directory=str(tmp_path / "index"))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_password_of_the_index_stays_secret(
    play: Play, index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    good = play("-vvv", tensorflow_index_url=f"http://reader:s3cret@{index}/simple")
    assert good.returncode == 0, good.stdout + good.stderr
    assert shown_version(str(tmp_path / "root" / "venv")) == "1.0"
    assert "s3cret" not in good.stdout + good.stderr


def test_index_out_of_reach(play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    refused = "http://reader:s3cret@127.0.0.1:1/simple"
    done = play("--limit", "worker-0", tensorflow_index_url=refused)
    assert done.returncode != 0
    assert "this host cannot reach the package index. Set tensorflow_index_url" in done.stdout
    assert "Connection refused" in done.stdout  # pip's own words
    assert "s3cret" not in done.stdout + done.stderr
    assert not (tmp_path / "root" / "venv").is_symlink()
