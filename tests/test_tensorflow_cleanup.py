"""Old environments of the role ``tensorflow`` go after a switch, and the rest on request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.host_roles import load
from tests.tensorflow_role import (
    ROLE,
    Call,
    environments,
    make_lock,
    make_wheel,
    part,
    shown_version,
    with_extra,
    with_lock,
)

pytest_plugins = ("tests.tensorflow_role",)
cleanup, installation = part("cleanup"), part("installation")
remover = load(ROLE / "library" / "tensorflow_remove.py")


class Versions:
    """Installs one version after the other."""

    def __init__(self, params: dict[str, Any], call: Call, folder: Path) -> None:
        self.params, self.call, self.folder = params, call, folder

    def lock(self, version: str) -> dict[str, Any]:
        lock = self.folder / f"{version}.txt"
        if not lock.exists():
            make_lock(lock, make_wheel(self.folder / "wheels", version))
        return with_lock(self.params, lock)

    def install(self, version: str, check_mode: bool = False, **more: Any) -> dict[str, Any]:
        result = self.call({**self.lock(version), **more}, check_mode=check_mode)
        assert not result.get("failed"), result
        time.sleep(0.02)  # the markers' times tell them apart
        return result

    @property
    def there(self) -> list[str]:
        return [name.split("-")[1] for name in environments(self.params["root"])]


def install_without_pip(environment: Any, requirements: str, work: Any, below: Any = None) -> None:
    """What the real function leaves behind, ten times faster."""
    packages, programs = Path(environment.packages(work.python)), Path(environment.folder, "bin")
    packages.mkdir(parents=True)
    programs.mkdir()
    interpreter = Path(sys.executable).resolve()
    (programs / "python").symlink_to(interpreter)
    Path(environment.folder, "pyvenv.cfg").write_text(f"home = {interpreter.parent}\n")
    if below is None:
        (packages / "tensorflow.py").write_text(f"__version__ = {Path(requirements).stem!r}\n")
    else:
        line = f"import site; site.addsitedir({below.packages(work.python)!r})\n"
        (packages / "tensorflow.pth").write_text(line)


@pytest.fixture
def versions(
    params: dict[str, Any], call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Versions:
    monkeypatch.setattr(installation, "install", install_without_pip)
    # Whatever the tests' own folder lies on.
    monkeypatch.setattr(cleanup, "shared_with", lambda _: "")
    return Versions(params, call, tmp_path)


def test_the_one_in_use_and_the_one_before_stay(versions: Versions) -> None:
    first = versions.install("1.0")
    assert versions.install("2.0")["removed"] == []
    third = versions.install("3.0")
    assert third["removed"] == [Path(first["venv"]).name]
    assert versions.there == ["2.0", "3.0"]
    assert versions.install("3.0")["removed"] == []


def test_the_one_before_is_the_one_that_was_linked_last(versions: Versions) -> None:
    for version in ("1.0", "2.0", "1.0", "3.0"):
        versions.install(version, keep=3)
    assert versions.there == ["1.0", "2.0", "3.0"]
    versions.install("2.0")  # from 3.0, which stays; 1.0 was linked before that
    assert versions.there == ["2.0", "3.0"]


@pytest.mark.parametrize(("keep", "there"), [(1, ["3.0"]), (0, ["1.0", "2.0", "3.0"])])
def test_how_many_stay(versions: Versions, keep: int, there: list[str]) -> None:
    for version in ("1.0", "2.0", "3.0"):
        versions.install(version, keep=keep)
    assert versions.there == there


def test_less_than_nothing_is_refused(versions: Versions) -> None:
    result = versions.call({**versions.lock("1.0"), "keep": -1})
    assert "tensorflow_keep is -1: write how many environments stay" in result["msg"]


def test_check_mode_tells_it(versions: Versions) -> None:
    first = versions.install("1.0")
    versions.install("2.0")
    looked = versions.install("3.0", check_mode=True)
    assert looked["removed"] == [Path(first["venv"]).name]
    assert versions.there == ["1.0", "2.0"]


def test_unfinished_ones_and_only_the_roles_own_go(versions: Versions) -> None:
    folder = Path(versions.install("1.0")["venv"]).parent
    torn = folder / "tensorflow-0.9-cpu-py3.11-0123456789ab"
    torn.mkdir()
    (torn / "tensorflow-venv.json.new").write_text("{")
    mine = folder / "my-own"
    mine.mkdir()
    assert versions.install("2.0")["removed"] == [torn.name]
    assert mine.is_dir()


def test_what_another_link_points_to_stays(versions: Versions) -> None:
    versions.install("1.0", environment="paper")
    for version in ("2.0", "3.0", "4.0"):
        versions.install(version)
    assert versions.there == ["1.0", "3.0", "4.0"]
    assert shown_version(str(Path(versions.params["root"], "paper"))) == "1.0"


def test_what_an_environment_on_top_needs_stays(versions: Versions, tmp_path: Path) -> None:
    extra = make_lock(
        tmp_path / "extra.txt", make_wheel(tmp_path / "wheels", "1.5", name="frobnicate")
    )
    result = versions.call(with_extra(versions.lock("1.0"), extra))
    assert result["changed"], result
    for version in ("2.0", "3.0", "4.0"):
        versions.install(version)
    assert sorted(set(versions.there) & {"1.0", "2.0"}) == ["1.0"]
    assert shown_version(str(Path(versions.params["root"], "script"))) == "1.0"


@contextmanager
def process(*command: str, cwd: Path | None = None) -> Iterator[int]:
    """A process that waits."""
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    yield child.pid
    child.communicate()


WAIT = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.mark.parametrize("how", ["command", "loaded", "folder"])
def test_what_a_process_uses_stays(versions: Versions, tmp_path: Path, how: str) -> None:
    venv = Path(versions.install("1.0")["venv"])
    versions.install("2.0")
    packages = next(venv.glob("lib/python3*/site-packages"))
    # A package's compiled part: mapped by the job, as TensorFlow's is, found through the link.
    mapped = packages / "part.so"
    mapped.write_bytes(b"\0" * 4096)
    by_map = (
        f"import mmap; f = open({str(mapped)!r}, 'rb');"
        f" m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); f.close(); {WAIT}"
    )
    # As a program under a name that tells nothing.
    script = tmp_path / "job.py"
    script.write_text(by_map)
    command = {
        "command": [str(venv / "bin" / "python"), "-c", WAIT],
        "loaded": [sys.executable, str(script)],
        "folder": [sys.executable, "-c", WAIT],
    }[how]
    with process(*command, cwd=venv if how == "folder" else None) as pid:
        result = versions.install("3.0")
        assert result["removed"] == []
        (note,) = result["notes"]
        assert f"{venv.name} stays: process {pid} (python" in note
    assert versions.there == ["1.0", "2.0", "3.0"]
    # The next switch takes it away.
    assert venv.name in versions.install("4.0")["removed"]


def write_process(folder: Path, pid: int, command: bytes, maps: bytes | None) -> None:
    place = folder / str(pid)
    place.mkdir(parents=True)
    (place / "cmdline").write_bytes(command)
    if maps is not None:
        (place / "maps").write_bytes(maps)


def test_another_users_process_under_the_root_counts_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its map of memory is hidden, so nobody knows which environment it has loaded."""
    monkeypatch.setattr(cleanup, "PROC", str(tmp_path / "proc"))
    root, old = tmp_path / "root", "tensorflow-1.0-cpu-py3.11-0123456789ab"
    read = cleanup._read
    monkeypatch.setattr(
        cleanup, "_read", lambda path: None if path.endswith("7/maps") else read(path)
    )
    write_process(tmp_path / "proc", 6, b"/usr/sbin/cron\0-f\0", b"/usr/lib/libc.so")
    write_process(tmp_path / "proc", 7, b"/usr/bin/python3\0/usr/bin/service\0", None)
    assert cleanup.in_use(str(root), [old]) == {}
    (tmp_path / "proc" / "7" / "cmdline").write_bytes(f"{root}/venv/bin/python\0x.py".encode())
    assert cleanup.in_use(str(root), [old]) == {old: "process 7 (python)"}


MOUNTS = """\
21 1 8:1 / / rw - {root} /dev/sda1 rw
30 21 0:40 / /home rw shared:1 - {home} server:/home rw
31 30 8:2 / /home/a\\040b/train/venvs rw - ext4 /dev/sdb1 rw
"""


@pytest.mark.parametrize(
    ("path", "home", "said"),
    [
        ("/home/ada/train/venvs", "nfs4", "other machines may use them (filesystem nfs4)"),
        ("/home/ada/train/venvs", "fuse.sshfs", "(filesystem fuse.sshfs)"),
        ("/home/ada/train/venvs", "xfs", ""),
        ("/homes/ada/train/venvs", "nfs4", ""),
        ("/home/a b/train/venvs", "xfs", "it is a mount of its own, which others may use"),
    ],
)
def test_folders_that_other_machines_may_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, home: str, said: str
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS.format(root="overlay", home=home))
    monkeypatch.setattr(cleanup, "MOUNTS", str(table))
    found = cleanup.shared_with(path)
    assert said in found
    assert bool(said) == bool(found)


def test_nothing_goes_from_a_shared_folder(
    versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "shared_with", lambda _: "other machines may use them")
    for version in ("1.0", "2.0"):
        versions.install(version)
    result = versions.install("3.0")
    assert result["removed"] == []
    folder = os.path.join(versions.params["root"], "venvs")
    assert result["notes"] == [f"1 old environments in {folder} stay: other machines may use them."]
    assert versions.there == ["1.0", "2.0", "3.0"]


def test_half_removed_does_not_pass_for_finished(
    versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = versions.install("1.0")
    versions.install("2.0")

    def fail(path: str) -> None:
        raise OSError(f"{path} is busy")

    with monkeypatch.context() as patched:
        patched.setattr(cleanup, "shutil", SimpleNamespace(rmtree=fail))
        result = versions.install("3.0")
        assert "could not be removed" in " ".join(result["notes"])
        assert result["removed"] == []
    assert not Path(first["venv"], "tensorflow-venv.json").exists()
    assert versions.install("1.0")["installed"]


# Removal of all of it


def test_everything_goes_on_request(versions: Versions) -> None:
    versions.install("1.0", environment="paper")
    versions.install("2.0")
    root = Path(versions.params["root"])
    (root / "wheels" / "host").mkdir(parents=True)
    (root / "jobs").mkdir()
    (root / "venvs" / "my-own").mkdir()
    looked = versions.call({"root": str(root)}, check_mode=True, run=remover)
    assert looked["changed"]
    assert (root / "venv").is_symlink()
    result = versions.call({"root": str(root)}, run=remover)
    assert result["removed"] == looked["removed"]
    assert sorted(path.name for path in root.iterdir()) == ["jobs", "venvs"]
    assert result["left"] == [f"{root}/venvs stays, with my-own.", f"{root} stays, with jobs."]
    assert result["left"] == looked["left"]
    again = versions.call({"root": str(root)}, run=remover)
    assert not again["changed"]
    nothing = versions.call({"root": str(root / "nowhere")}, run=remover)
    assert (nothing["changed"], nothing["left"]) == (False, [])


def test_what_runs_is_not_removed(versions: Versions) -> None:
    old = Path(versions.install("1.0")["venv"])
    link = Path(versions.install("2.0")["link"])
    with process(str(link.resolve() / "bin" / "python"), "-c", WAIT) as pid:
        result = versions.call({"root": versions.params["root"]}, run=remover)
        assert result["removed"] == [str(old)]
        root = versions.params["root"]
        assert result["left"] == [
            f"{link.resolve()} stays: process {pid} (python) uses it.",
            f"{root} stays, with venv.",
        ]
        assert shown_version(str(link)) == "2.0"
    result = versions.call({"root": versions.params["root"]}, run=remover)
    assert str(link) in result["removed"]
    assert json.dumps(sorted(os.listdir(versions.params["root"]))) == "[]"
