"""The role ``training_data``: both halves together; the host is a folder of this machine."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail

ROLE = Path(__file__).resolve().parents[1] / "roles" / "training_data"


def load(kind: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        f"training_data_{kind}", ROLE / kind / "training_data.py"
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


host = load("library")
control = load("action_plugins")
CHUNK, BATCH = 1000, 4000


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (host, control):
        monkeypatch.setattr(module, "CHUNK", CHUNK)
        monkeypatch.setattr(module, "BATCH", BATCH)
    monkeypatch.setattr(control, "GROWING_S", 0.01)
    # What others have not written yet is on this disk, too.
    monkeypatch.setattr(host, "flush", lambda _: None)


class CutError(Exception):
    """The connection broke."""


class Action(control.ActionModule):  # type: ignore[name-defined,misc]
    """The action, with the module run in this process and the host's shell on this machine."""

    def __init__(self, folder: Path, entries: list[dict[str, Any]], **arguments: Any) -> None:
        self.root = folder / "host"
        self._folder = folder
        args = {"root": str(self.root), "entries": entries, **arguments}
        check_mode = bool(args.pop("check_mode", False))
        self._task = SimpleNamespace(args=args, check_mode=check_mode, async_val=0)
        self._loader = SimpleNamespace(path_dwim=lambda name: str(folder / name))
        shell = SimpleNamespace(tmpdir=str(folder), join_path=os.path.join)
        self._connection = SimpleNamespace(_shell=shell)
        self._vars: dict[str, Any] = {}
        self._args: dict[str, Any] = {}
        self._parent = os.getppid()
        self.calls: list[str] = []
        self.sent = 0
        #: Bytes after which the connection breaks.
        self.cut_after = 10**9
        self.before_sending: Callable[[], None] = lambda: None

    def act(self) -> dict[str, Any]:
        result: dict[str, Any] = self.run()
        return result

    def _execute_module(self, **call: Any) -> dict[str, Any]:
        params: dict[str, Any] = {
            "verify": False,
            "step": "look",
            "batch": [],
            "last": False,
            "entries": [],
        }
        params.update(json.loads(json.dumps(call["module_args"])))
        self.calls.append(params["step"])
        try:
            return {"changed": False, **host.run(params, self._task.check_mode)}
        except host.DataError as error:
            return {"failed": True, "msg": str(error)}

    def _low_level_execute_command(
        self, cmd: str, in_data: bytes | None = None, **_: Any
    ) -> dict[str, Any]:
        if in_data:
            self.before_sending()
            left = self.cut_after - self.sent
            self.sent += min(left, len(in_data))
            if left < len(in_data):
                subprocess.run(["sh", "-c", cmd], input=in_data[:left], check=True)
                raise CutError
        done = subprocess.run(["sh", "-c", cmd], input=in_data, capture_output=True, check=False)
        return {"rc": done.returncode, "stdout": done.stdout.decode(), "stderr": ""}

    def _transfer_data(self, remote_path: str, data: str) -> str:
        Path(remote_path).write_text(data)
        return remote_path

    def _fixup_perms2(self, *_: Any) -> None:
        pass


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Action]:
    """Return a factory of actions; each is a run of Ansible of its own."""
    runs = iter(range(1000))

    def factory(*entries: dict[str, Any], **arguments: Any) -> Action:
        run_folder = tmp_path / f"run-{next(runs)}"
        run_folder.mkdir()
        monkeypatch.setattr(control.constants, "DEFAULT_LOCAL_TMP", str(run_folder))
        monkeypatch.setattr(control.constants, "ANSIBLE_HOME", str(tmp_path / "home"))
        return Action(tmp_path, list(entries), **arguments)

    return factory


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of 10 files with 900 bytes each, one of 9000, an empty one, and a link."""
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    for number in range(10):
        (folder / "sub" / f"{number} ä.bin").write_bytes(os.urandom(900))
    (folder / "large").write_bytes(os.urandom(9000))
    (folder / ".empty").touch()
    (folder / "link").symlink_to("large")
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


SIZE = 10 * 900 + 2 * 9000


def test_a_folder_comes_once(make: Callable[..., Action], source: Path) -> None:
    entry = {"name": "data", "src": "source"}
    checked = make(entry, check_mode=True)
    result = checked.act()
    assert result["changed"]
    assert result["brought"] == [{"name": "data", "bytes": SIZE, "sent": 0}]
    assert not checked.root.exists()
    first = make(entry)
    result = first.act()
    assert result["brought"] == [{"name": "data", "bytes": SIZE, "sent": SIZE}]
    assert result["paths"] == {"data": str(first.root / "data")}
    assert content(first.root / "data") == content(source)
    assert (first.root / "data" / "large").stat().st_mode & 0o777 == 0o644
    second = make(entry)
    result = second.act()
    assert (result["changed"], result["brought"]) == (False, [])
    assert second.calls == ["look"]
    assert not make(entry, check_mode=True).act()["changed"]
    assert os.listdir(first.root / ".training_data") == ["data.json"]


@pytest.mark.parametrize("cut_after", [1, 999, 1000, 1001, 3500, 8123, 9001, 15000, SIZE - 1])
def test_a_cut_transfer_is_taken_up(
    cut_after: int, make: Callable[..., Action], source: Path
) -> None:
    entry = {"name": "data", "src": "source"}
    broken = make(entry)
    broken.cut_after = cut_after
    with pytest.raises(CutError):
        broken.act()
    assert not (broken.root / "data").exists()
    assert broken.sent == cut_after
    again = make(entry)
    again.act()
    assert broken.sent + again.sent == SIZE
    assert content(again.root / "data") == content(source)


def test_a_source_that_changed_meanwhile(make: Callable[..., Action], source: Path) -> None:
    entry = {"name": "data", "src": "source"}
    broken = make(entry)
    broken.cut_after = 12000
    with pytest.raises(CutError):
        broken.act()
    (source / ".empty").write_bytes(b"not empty any more")
    (source / "large").write_bytes(os.urandom(9100))
    again = make(entry)
    again.act()
    assert content(again.root / "data") == content(source)


def test_a_break_while_files_are_made_loses_nothing(
    make: Callable[..., Action], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"name": "data", "src": "source"}
    copy, count = host.copy_tail, iter(range(100))

    def dying(*arguments: Any) -> Any:
        if next(count) == 2:
            raise CutError
        return copy(*arguments)

    broken = make(entry)
    monkeypatch.setattr(host, "copy_tail", dying)
    with pytest.raises(CutError):
        broken.act()
    monkeypatch.setattr(host, "copy_tail", copy)
    again = make(entry)
    again.act()
    assert broken.sent + again.sent == SIZE
    assert content(again.root / "data") == content(source)


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("unpack", [False, True])
def test_a_break_while_data_are_put_in_place(
    step: int,
    unpack: bool,
    make: Callable[..., Action],
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The three moments: before, between and after the two renames."""

    def entry() -> dict[str, Any]:
        if not unpack:
            return {"name": "data", "src": "source"}
        pack(source, tmp_path / "data.tar")
        return {"name": "data", "src": "data.tar", "sha256": sha256(tmp_path / "data.tar")}

    make(entry()).act()
    (source / "sub" / "1 ä.bin").unlink()
    (source / "large").write_bytes(os.urandom(9000))
    old = tmp_path / "host" / "data" / "own"
    old.write_text("of the user")
    rename, replace, count = os.rename, os.replace, iter(range(100))

    def dying(move: Any) -> Any:
        def moving(source: str, target: str) -> None:
            mine = str(target).endswith(("/data", "/old", "/data.json"))
            if mine and next(count) == step:
                raise CutError
            move(source, target)

        return moving

    monkeypatch.setattr(host.os, "rename", dying(rename))
    monkeypatch.setattr(host.os, "replace", dying(replace))
    with pytest.raises(CutError):
        make(entry()).act()
    monkeypatch.setattr(host.os, "rename", rename)
    monkeypatch.setattr(host.os, "replace", replace)
    again = make(entry())
    again.act()
    assert again.sent == 0
    assert content(tmp_path / "host" / "data") == {**content(source), "own": b"of the user"}
    assert make(entry()).act()["changed"] is False


def pack(folder: Path, path: Path) -> None:
    with tarfile.open(path, "w") as packed:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                packed.add(file.resolve(), str(file.relative_to(folder)))


def test_only_what_differs_is_sent(make: Callable[..., Action], source: Path) -> None:
    entry = {"name": "data", "src": "source"}
    first = make(entry)
    first.act()
    data = first.root / "data"
    (data / "cache").mkdir()
    (data / "cache" / "own.tfrecord").write_text("of the user")
    kept = (data / "large").stat().st_ino
    (source / "sub" / "3 ä.bin").write_bytes(os.urandom(50))
    (source / "sub" / "4 ä.bin").unlink()
    (source / "new").write_bytes(b"new")
    assert make(entry, check_mode=True).act()["brought"][0]["bytes"] == 53
    second = make(entry)
    second.act()
    assert second.sent == 53
    assert content(data) == {**content(source), "cache/own.tfrecord": b"of the user"}
    assert (data / "large").stat().st_ino == kept
    assert make(entry).act()["changed"] is False


def test_damage_is_mended(make: Callable[..., Action], source: Path) -> None:
    entry = {"name": "data", "src": "source"}
    first = make(entry)
    first.act()
    large = first.root / "data" / "large"
    large.unlink()
    again = make(entry)
    again.act()
    assert again.sent == 9000
    before = large.stat()
    large.write_bytes(b"x" * 9000)
    os.utime(large, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert make(entry).act()["changed"] is False
    verified = make(entry, verify=True)
    verified.act()
    assert verified.sent == 9000
    assert content(first.root / "data") == content(source)


def test_what_comes_broken_is_refused(make: Callable[..., Action], source: Path) -> None:
    entry = {"name": "data", "src": "source"}
    broken = make(entry)
    part = broken.root / ".training_data" / "data" / "part"

    def flip() -> None:
        if part.exists() and part.stat().st_size >= 1000:
            data = bytearray(part.read_bytes())
            data[10] ^= 1
            part.write_bytes(data)

    broken.before_sending = flip
    result = broken.act()
    assert result["failed"]
    for words in ("expected", "SHA-256", "run again"):
        assert words in result["msg"]
    assert not (broken.root / "data").exists()
    again = make(entry)
    again.act()
    assert content(again.root / "data") == content(source)


def test_another_run_at_the_same_time(make: Callable[..., Action], source: Path) -> None:
    """One of two that send the same waits, and then has nothing or less to send."""
    entry = {"name": "data", "src": "source"}
    slow = make(entry)
    started: list[bool] = []

    def other() -> None:
        if slow.sent == 3000 and not started:
            started.append(True)
            Action(slow._folder, [entry]).act()

    slow.before_sending = other
    slow.act()
    assert started
    assert slow.sent < SIZE
    assert content(slow.root / "data") == content(source)


def test_a_worker_without_its_parent_stops(
    make: Callable[..., Action], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    action = make({"name": "data", "src": "source"})
    parents = iter([100, 100, 1])
    monkeypatch.setattr(control.os, "getppid", lambda: next(parents))
    with pytest.raises(AnsibleActionFail, match="has ended"):
        action.act()
    assert action.sent == 1000


# Archives and known data sets


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz", "a.tar.xz", "a.zip"])
def test_archives_are_unpacked(
    name: str, make: Callable[..., Action], source: Path, tmp_path: Path
) -> None:
    path = tmp_path / name
    if name.endswith("zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for file in source.rglob("*"):
                packed.write(file, str(file.relative_to(source)))
    else:
        modes = {".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz"}
        with tarfile.open(path, modes.get(path.suffix, "w")) as packed_tar:  # type: ignore[call-overload]
            packed_tar.add(source, ".")
    entry = {"name": "data", "src": name, "sha256": sha256(path)}
    action = make(entry)
    action.act()
    assert content(action.root / "data") == content(source)
    path.unlink()  # with a hash, the source is not needed any more
    second = make(entry)
    assert not second.act()["changed"]
    assert second.calls == ["look"]


def test_gz_stays_packed_unless_asked(make: Callable[..., Action], tmp_path: Path) -> None:
    (tmp_path / "a.idx.gz").write_bytes(gzip.compress(b"inside"))
    entry = {"name": "data", "src": "a.idx.gz", "sha256": sha256(tmp_path / "a.idx.gz")}
    action = make(entry)
    action.act()
    assert list(content(action.root / "data")) == ["a.idx.gz"]
    make({**entry, "unpack": True}).act()
    # The packed file was the role's own, and goes.
    assert content(action.root / "data") == {"a.idx": b"inside"}


def evil(path: Path, name: str, link: str = "") -> None:
    with tarfile.open(path, "w") as packed:
        if link:
            info = tarfile.TarInfo("way")
            info.type, info.linkname = tarfile.SYMTYPE, link
            packed.addfile(info)
        info = tarfile.TarInfo(name)
        info.size = 3
        packed.addfile(info, io.BytesIO(b"bad"))


@pytest.mark.parametrize(
    ("name", "link"),
    [
        ("../bad", ""),
        ("/tmp/bad-of-the-test", ""),
        ("a/../../bad", ""),
        ("good", "/etc"),
        ("good", "../.."),
        ("way/bad", ".."),
    ],
)
def test_an_archive_cannot_write_elsewhere(
    name: str, link: str, make: Callable[..., Action], tmp_path: Path
) -> None:
    evil(tmp_path / "a.tar", name, link)
    action = make({"name": "data", "src": "a.tar", "sha256": sha256(tmp_path / "a.tar")})
    result = action.act()
    assert result["failed"]
    assert "points outside" in result["msg"]
    assert not list(tmp_path.rglob("bad*"))
    assert not (action.root / "data").exists()


def test_links_within_an_archive(make: Callable[..., Action], tmp_path: Path) -> None:
    evil(tmp_path / "a.tar", "deep/good", "deep/../deep")
    action = make({"name": "data", "src": "a.tar", "sha256": sha256(tmp_path / "a.tar")})
    assert "failed" not in action.act()
    assert (action.root / "data" / "way" / "good").read_bytes() == b"bad"


def test_a_broken_archive(make: Callable[..., Action], tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"no zip at all")
    with pytest.raises(AnsibleActionFail, match="unpack: false"):
        make({"name": "data", "src": "a.zip", "sha256": sha256(tmp_path / "a.zip")}).act()


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A known data set of two files, in the published form."""
    folder = tmp_path / "idx"
    folder.mkdir()
    files = {}
    for name, text in (("images.gz", b"images" * 300), ("labels.gz", b"labels")):
        (folder / name).write_bytes(gzip.compress(text, mtime=1))
        files[name] = control.Published(sha256(folder / name), hashlib.sha256(text).hexdigest())
    monkeypatch.setitem(control.DATASETS, "tiny", files)
    return folder


def test_a_known_data_set(make: Callable[..., Action], published: Path) -> None:
    (published / "README").write_text("is not brought")
    entry = {"name": "tiny", "src": "idx", "dataset": "tiny"}
    action = make(entry)
    action.act()
    assert sorted(content(action.root / "tiny")) == ["images.gz", "labels.gz"]
    # The same data, compressed anew, as distributions do.
    packed = published / "images.gz"
    packed.write_bytes(gzip.compress(gzip.decompress(packed.read_bytes()), 1, mtime=2))
    assert not make(entry).act()["changed"]
    (action.root / "tiny" / "images.gz").unlink()
    make(entry).act()
    assert content(action.root / "tiny")["images.gz"] == packed.read_bytes()


def test_a_known_data_set_with_other_content(make: Callable[..., Action], published: Path) -> None:
    wanted = control.DATASETS["tiny"]["labels.gz"]
    (published / "labels.gz").write_bytes(gzip.compress(b"others", mtime=1))
    with pytest.raises(AnsibleActionFail) as error:
        make({"name": "tiny", "src": "idx", "dataset": "tiny"}).act()
    found = sha256(published / "labels.gz")
    for words in ("labels.gz", found, wanted.sha256, wanted.content, "again"):
        assert words in str(error.value)
    (published / "labels.gz").unlink()
    with pytest.raises(AnsibleActionFail, match=r"labels\.gz is not there"):
        make({"name": "tiny", "src": "idx", "dataset": "tiny"}).act()


def test_published_hashes_are_whole() -> None:
    for files in control.DATASETS.values():
        for file in files.values():
            for value in filter(None, (file.sha256, file.content)):
                assert control.SHA256.fullmatch(value)


# Hashes


def test_the_hash_of_a_folder_is_that_of_sha256sum(
    make: Callable[..., Action], source: Path
) -> None:
    recipe = (
        "find -L . -type f -printf '%P\\n' | LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum"
    )
    done = subprocess.run(["sh", "-c", recipe], cwd=source, capture_output=True, check=True)
    digest = done.stdout.decode().split()[0]
    entry = {"name": "data", "src": "source", "sha256": digest}
    assert make(entry).act()["changed"]
    assert not make({"name": "data", "src": "source"}).act()["changed"]
    (source / "large").write_bytes(b"another")
    assert not make(entry).act()["changed"]  # the hosts have what was asked for
    (source.parent / "host" / "data" / "large").unlink()
    with pytest.raises(AnsibleActionFail, match=f"expected {digest}"):
        make(entry).act()


def test_sources_are_read_once(
    make: Callable[..., Action], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    digest = hashlib.file_digest

    def counting(*args: Any) -> Any:
        read.append(args)
        return digest(*args)

    monkeypatch.setattr(control.hashlib, "file_digest", counting)
    entry = {"name": "data", "src": "source"}
    make(entry).act()
    assert len(read) == 13
    make(entry).act()  # in a later run, unchanged files are known
    assert len(read) == 13
    (source / "large").write_bytes(b"another")
    make(entry).act()
    assert len(read) == 15  # it, and the link to it


def test_a_filesystem_is_flushed(tmp_path: Path) -> None:
    load("library").flush(str(tmp_path))


# What is refused


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"src": "source"}, "name must be"),
        ({"name": "../x", "src": "source"}, "name must be"),
        ({"name": "x"}, "either src"),
        ({"name": "x", "src": "source", "mounted": "/mnt"}, "either src"),
        ({"name": "x", "src": "https://example.org/a.tgz"}, "nothing is fetched"),
        ({"name": "x", "src": "source", "dest": "../y"}, "below training_data_root"),
        ({"name": "x", "src": "source", "dest": "/y"}, "below training_data_root"),
        ({"name": "x", "src": "source", "sha256": "abc"}, "64 hexadecimal"),
        ({"name": "x", "src": "source", "dataset": "imagenet"}, "is one of fashion-mnist"),
        ({"name": "x", "src": "source", "unpack": True}, "unpack is for one file"),
        ({"name": "x", "src": "source", "sort": 1}, "no others"),
        ({"name": "x", "mounted": "mnt"}, "absolute path"),
        ({"name": "x", "src": "nowhere"}, "is not there"),
        ({"name": "x", "src": "source/large"}, "needs sha256"),
        ({"name": "x", "src": "source/large", "sha256": "0" * 64}, "expected 000000"),
    ],
)
def test_bad_input_is_refused(
    entry: dict[str, Any], words: str, make: Callable[..., Action], source: Path
) -> None:
    action = make(entry)
    with pytest.raises(AnsibleActionFail, match=words):
        action.act()
    assert not action.root.exists()


def test_entries_at_odds(make: Callable[..., Action], source: Path) -> None:
    one = {"name": "x", "src": "source"}
    for other, words in (
        (one, "two entries"),
        ({"name": "y", "src": "source", "dest": "x"}, "would lie in"),
        ({"name": "y", "src": "source", "dest": "x/y"}, "would lie in"),
    ):
        with pytest.raises(AnsibleActionFail, match=words):
            make(one, other).act()


def test_a_bad_entry_stops_before_the_good_one_comes(
    make: Callable[..., Action], source: Path
) -> None:
    action = make({"name": "good", "src": "source"}, {"name": "bad", "src": "nowhere"})
    with pytest.raises(AnsibleActionFail, match="nowhere"):
        action.act()
    assert not action.root.exists()


def test_odd_files_in_a_folder(make: Callable[..., Action], source: Path) -> None:
    (source / "sub" / "up").symlink_to("..")
    with pytest.raises(AnsibleActionFail, match="that it is in"):
        make({"name": "data", "src": "source"}).act()
    (source / "sub" / "up").unlink()
    (source / "dead").symlink_to("nowhere")
    with pytest.raises(AnsibleActionFail, match="dead is no file"):
        make({"name": "data", "src": "source"}).act()


def test_data_of_others_are_not_replaced(make: Callable[..., Action], source: Path) -> None:
    action = make({"name": "data", "src": "source"})
    (action.root / "data").mkdir(parents=True)
    (action.root / "data" / "precious").write_text("mine")
    result = action.act()
    assert "precious" in result["msg"]
    assert "Move it away" in result["msg"]
    assert action.sent == 0
    # Without it, files that are there already are not sent.
    (action.root / "data" / "precious").unlink()
    (action.root / "data" / "large").write_bytes((source / "large").read_bytes())
    again = make({"name": "data", "src": "source"})
    again.act()
    assert again.sent == SIZE - 9000


def test_too_little_space(
    make: Callable[..., Action], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 10**6
    disk = SimpleNamespace(f_bavail=free, f_frsize=1, f_files=1, f_favail=10**6)
    monkeypatch.setattr(host.os, "statvfs", lambda _: disk)
    monkeypatch.setattr(host, "RESERVE", 0)
    entry = {"name": "data", "src": "source"}
    disk.f_bavail = SIZE - 1
    for check_mode in (True, False):
        action = make(entry, check_mode=check_mode)
        assert "Too little space for data" in action.act()["msg"]
        assert not action.root.exists()
    disk.f_bavail, disk.f_favail = free, 3
    assert "Too few inodes" in make(entry).act()["msg"]


def test_a_full_disk_is_told(
    make: Callable[..., Action], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = {"rc": 1, "stdout": "", "stderr": "cat: write error: No space left on device\n"}
    action = make({"name": "data", "src": "source"})
    monkeypatch.setattr(action, "_low_level_execute_command", lambda *_, **__: full)
    with pytest.raises(AnsibleActionFail) as error:
        action.act()
    for words in ("/data/part", "No space left", "What has come stays", "run again"):
        assert words in str(error.value)


# Data that are mounted


def test_mounted_data(
    make: Callable[..., Action], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"name": "data", "mounted": str(source)}
    result = make(entry).act()
    assert "nothing is mounted" in result["msg"]
    assert not make(entry, check_mode=True).act()["changed"]
    monkeypatch.setattr(host, "mount_point_of", lambda _: str(source.parent))
    result = make(entry).act()
    assert (result["changed"], result["paths"]) == (False, {"data": str(source)})
    result = make({**entry, "sha256": "0" * 64}).act()
    assert "expected 000000" in result["msg"]
    (source / "link").unlink()
    files = [
        host.File(path, len(data), hashlib.sha256(data).hexdigest())
        for path, data in content(source).items()
    ]
    known = {**entry, "sha256": host.tree_hash(files)}
    assert "failed" not in make(known).act()
    monkeypatch.setattr(host, "verify_mounted", lambda *_: pytest.fail("read again"))
    assert "failed" not in make(known).act()


def test_mount_points(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text(f"/dev/vda / ext4 rw 0 0\nnas:/x {tmp_path} nfs4 rw 0 0\n")
    assert host.mount_point_of(str(tmp_path / "a" / "b"), str(table)) == str(tmp_path)
    assert host.mount_point_of(str(tmp_path) + "b", str(table)) == "/"


# Removing


def test_removal_leaves_what_is_of_others(make: Callable[..., Action], source: Path) -> None:
    make({"name": "one", "src": "source"}, {"name": "two", "src": "source", "dest": "a/b"}).act()
    root = source.parent / "host"
    (root / "one" / "sub" / "own").write_text("of the user")
    checked = make(step="remove", check_mode=True).act()
    assert checked["changed"]
    assert (root / "one" / "large").exists()
    removed = make(step="remove").act()
    assert (removed["changed"], removed["left"]) == (True, [str(root / "one")])
    assert content(root) == {"one/sub/own": b"of the user"}
    assert not make(step="remove").act()["changed"]
