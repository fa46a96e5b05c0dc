"""Old environments of the role ``tensorflow`` go after a switch, and the rest on request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.tensorflow_role import cleanup

Patch = pytest.MonkeyPatch
WAIT = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: Patch) -> Path:
    # Whatever the tests' own folder lies on.
    monkeypatch.setattr(cleanup, "shared_with", lambda _: "")
    (tmp_path / "root" / "venvs").mkdir(parents=True)
    return tmp_path / "root"


def made(root: Path, version: str, used: int = 0, base: str = "") -> str:
    """Make an environment that was linked last at this time, never if it is unfinished."""
    name = f"extra-{'1' * 12}" if base else f"tensorflow-{version}-cpu-py3.11-{'0' * 12}"
    marker = root / "venvs" / name / "tensorflow-venv.json"
    marker.parent.mkdir()
    if used:
        content = {"requirements_sha256": "", "base": base or name}
        marker.write_text(json.dumps(content))
        os.utime(marker, (used, used))
    return name


def old(root: Path, name: str, before: str, keep: int = 2, check: bool = False) -> Any:
    """What goes, and what stays for which reason, when the link was switched."""
    wanted = SimpleNamespace(params={"keep": keep}, root=root, link=f"{root}/venv")
    wanted.folder = f"{root}/venvs"
    wanted.base = wanted.environment = SimpleNamespace(name=name)
    return cleanup.remove_old(wanted, f"{root}/venvs/{before}", check)


def test_what_is_wanted_linked_or_was_in_use_last_stays(root: Path) -> None:
    one, two, three = (made(root, f"{number}.0", number) for number in (1, 2, 3))
    assert old(root, three, before=two, keep=0) == ([], [])
    # The one that the link has left was in use last, whatever the time of its marker.
    assert old(root, three, before=one, check=True) == ([two], [])
    assert old(root, three, before=two, check=True) == ([one], [])
    assert old(root, three, before=two, keep=1, check=True) == ([one, two], [])
    assert cleanup.environments(str(root / "venvs")) == {one: 1.0, two: 2.0, three: 3.0}
    # What another link needs stays, with what is below it.
    extra = made(root, "", 1, base=one)
    (root / "paper").symlink_to(f"venvs/{extra}")
    assert old(root, three, before=two) == ([], [])
    (root / "paper").unlink()
    # Unfinished ones go, and only the role's own.
    half = made(root, "0.9")
    (root / "venvs" / "my-own").mkdir()
    assert old(root, three, before=two) == (sorted([half, one, extra]), [])
    assert {*os.listdir(root / "venvs")} == {two, three, "my-own"}


def waiting(*words: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
    """A process that waits until its input ends."""
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def test_what_a_process_uses_stays(root: Path, tmp_path: Path) -> None:
    """Its program, what it has loaded through the link, or its folder."""
    names = [made(root, f"{number}.0", number) for number in (1, 2, 3, 4)]
    command, loaded, folder = (root / "venvs" / name for name in names[:3])
    (command / "python").symlink_to(sys.executable)
    (loaded / "part.so").write_bytes(b"\0" * 4096)  # a package's compiled part, as TensorFlow's
    script = tmp_path / "job.py"  # a command that shows nothing
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
        assert f"{name} stays: process {process.pid} (python" in note
    assert old(root, names[3], before="", keep=1) == (names[:3], [])


def test_another_users_process_under_the_root_counts_for_all(
    root: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """Its map of memory is hidden, so nobody knows which environment it has loaded."""
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
    one, two = (made(root, f"{number}.0", number) for number in (1, 2))
    with monkeypatch.context() as patched:
        patched.setattr(cleanup, "shared_with", lambda _: "others may use them")
        stay = f"1 old environments in {root}/venvs stay: others may use them."
        assert old(root, two, before="", keep=1) == ([], [stay])

    def fail(path: str) -> None:
        raise OSError(f"{path} is busy")

    monkeypatch.setattr(cleanup, "shutil", SimpleNamespace(rmtree=fail))
    removed, notes = old(root, two, before="", keep=1)
    assert (removed, "could not be removed" in notes[0]) == ([], True)
    # Half removed does not pass for finished.
    assert cleanup.environments(str(root / "venvs")) == {one: 0.0, two: 2.0}


def test_everything_goes_on_request_but_what_runs(root: Path) -> None:
    one, two = (made(root, f"{number}.0", number) for number in (1, 2))
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
        f"{two} stays: process {process.pid} (python) uses it.",
        f"{root} stays, with jobs, venv.",
    ]
    process.communicate()
    (root / "venvs/my-own").rmdir()
    jobs = [f"{root} stays, with jobs."]
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
        ("/home/a b/train/venvs", "xfs", "it is a mount of its own, which others may use"),
    ]:
        (tmp_path / "mountinfo").write_text(
            "21 1 8:1 / / rw - overlay /dev/sda1 rw\n"
            f"30 21 0:40 / /home rw shared:1 - {filesystem} server:/home rw\n"
            "31 30 8:2 / /home/a\\040b/train/venvs rw - ext4 /dev/sdb1 rw\n"
        )
        found = cleanup.shared_with(path)
        assert message in found
        assert bool(message) == bool(found)
