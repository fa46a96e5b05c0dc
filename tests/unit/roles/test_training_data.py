"""The filters and the module of the role ``training_data``, in this process."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.tensorflow_ansible.cluster.plugins.filter import training_data as filters
from ansible_collections.tensorflow_ansible.cluster.plugins.module_utils.data_unpacking import (
    UnpackingError,
)
from ansible_collections.tensorflow_ansible.cluster.plugins.modules import training_data as module

from tests.support.data_folders import content, make_source, sha256


class Play:
    """Runs the steps of the role's tasks in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.place = folder, folder / "host", folder / "host/data"
        self.source = make_source(folder)
        self.published: dict[str, Any] = {}
        self.verify = False

    def run(self, state: str, *entries: Any, dry: bool = False) -> dict[str, Any]:
        given = {"root": str(self.root), "entries": entries, "state": state, "verify": self.verify}
        return module.run(given, dry)

    def copy(self, entry: dict[str, Any], tree: Path) -> None:
        """Copy the files like tasks/stage.yml."""
        sources = entry.get("sources") or {path: entry["folder"] + path for path in entry["files"]}
        for path, source in sources.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, tree / path)

    def act(self, **keys: Any) -> str:
        """Process one entry like tasks/main.yml; return the changes, or the error."""
        entry = {"name": "data", "src": "source", **keys}
        try:
            (asked,) = filters.training_data_entries([entry], str(self.folder), self.published)
            if not self.run("checked", asked)["missing"]:
                return "nothing"
            asked = filters.training_data_source(asked)
            if not asked["mounted"]:
                self.copy(asked, self.root / ".training_data" / asked["name"] / "tree")
            return "changed" if self.run("placed", asked)["changed"] else "verified"
        except (AnsibleFilterError, UnpackingError) as error:
            return str(error)

    def unpack(self, name: str) -> str:
        return self.act(src=name, sha256=sha256(self.folder / name))


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setattr(os, "sync", lambda: None)
    return Play(tmp_path)


def test_a_folder_comes_once_and_then_what_differs(play: Play) -> None:
    place, source = play.place, play.source
    assert play.act() == "changed"
    assert content(place) == content(source)
    assert os.listdir(play.root / ".training_data") == ["data.json"]
    assert play.act() == "nothing"

    (place / "cache").mkdir()
    (place / "cache" / "own.tfrecord").write_text("of the user")
    (place / ".empty").unlink()
    (source / "sub" / "1 ä.bin").write_bytes(os.urandom(50))
    (source / "sub" / "2 ä.bin").unlink()
    (source / "new").write_bytes(b"new")
    broken = play.root / ".training_data/data/tree"  # from a run that broke off
    broken.mkdir(parents=True)
    (broken / "gone").write_text("of a file that the source has no more")
    assert play.act() == "changed"
    assert content(place) == {**content(source), "cache/own.tfrecord": b"of the user"}

    time = (place / "large").stat().st_mtime_ns
    (place / "large").write_bytes(os.urandom(900))
    os.utime(place / "large", ns=(time, time))
    assert play.act() == "nothing", "damage without a trace"
    play.verify = True
    assert play.act() == "changed"
    assert content(place)["large"] == content(source)["large"]


@pytest.mark.parametrize("step", range(4))
def test_a_break_while_placing(step: int, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may break off before each of two renames and two writes of the notes."""
    play.act()
    (play.source / "large").write_bytes(os.urandom(900))
    (play.source / "link").unlink()
    (play.place / "own").write_text("of the user")
    count = iter(range(100))

    def dying(move: Any, path: Path, target: Path) -> None:
        if next(count) == step:
            raise RuntimeError
        move(path, target)

    with monkeypatch.context() as patched:
        for name in ("rename", "replace"):
            patched.setattr(Path, name, partialmethod(partial(dying, getattr(Path, name))))
        with pytest.raises(RuntimeError):
            play.act()
    play.act()
    assert content(play.place) == {**content(play.source), "own": b"of the user"}
    assert play.act() == "nothing"


def test_odd_files_in_a_folder(play: Play) -> None:
    for link, target in (("sub/up", ".."), ("dead", "nowhere")):
        (play.source / link).symlink_to(target)
        assert f"{link} is a broken or circular link" in play.act()
        (play.source / link).unlink()


def test_a_known_data_set(play: Play) -> None:
    files = {}
    for name, text in (("images.gz", b"images" * 300), ("labels.gz", b"labels")):
        (play.source / name).write_bytes(gzip.compress(text, mtime=1))
        known = hashlib.sha256(text).hexdigest()
        files[name] = {"sha256": sha256(play.source / name), "content": known}
    play.published = {"tiny": {"files": files}}
    assert play.act(dataset="tiny") == "changed"
    assert sorted(content(play.place)) == ["images.gz", "labels.gz"]
    # The same data, compressed again, as by distributions.
    packed = play.source / "images.gz"
    packed.write_bytes(gzip.compress(gzip.decompress(packed.read_bytes()), 1, mtime=2))
    assert play.act(dataset="tiny") == "nothing"
    (play.place / "images.gz").unlink()
    assert play.act(dataset="tiny") == "changed"
    assert content(play.place)["images.gz"] == packed.read_bytes()

    (play.place / "images.gz").unlink()
    packed.unlink()
    assert "images.gz does not exist" in play.act(dataset="tiny")


def test_hashes_are_compared(play: Play) -> None:
    """The hash of a folder is that of the command in the README."""
    large = play.source / "large"
    message = play.act(src="source/large", sha256="0" * 64)
    assert f"large has SHA-256 {sha256(large)}, expected {'0' * 64}" in message
    assert not play.place.exists()
    recipe = "find -L . -type f -printf '%P\\n' | LC_ALL=C sort | xargs -d '\\n' sha256sum"
    command = ["sh", "-c", f"{recipe} | sha256sum"]
    digest = subprocess.check_output(command, cwd=play.source, text=True).split()[0]
    assert play.act(sha256=digest) == "changed"
    # Mounted data are read once, and not changed.
    mounted = {"src": "", "name": "m", "mounted": str(play.source), "sha256": digest}
    assert [play.act(**mounted), play.act(**mounted)] == ["verified", "nothing"]

    large.write_bytes(b"another")
    assert f"expected {digest}" in play.act(**mounted)
    assert play.act(sha256=digest) == "nothing"  # the host has the requested data
    (play.place / "large").unlink()
    assert f"expected {digest}" in play.act(sha256=digest)


def test_removal_leaves_what_is_of_others(play: Play) -> None:
    play.act()
    play.act(name="two", dest="a/b")
    (play.place / "sub" / "own").write_text("of the user")
    assert play.run("absent", dry=True)["changed"]
    assert content(play.place) == {**content(play.source), "sub/own": b"of the user"}
    removed = play.run("absent")
    assert (removed["changed"], removed["left"]) == (True, [str(play.place)])
    assert content(play.root) == {"data/sub/own": b"of the user"}
    assert not play.run("absent")["changed"]


KINDS = {"a.tar": "tar", "a.tar.gz": "gztar", "a.tgz": "gztar", "a.tar.xz": "xztar", "a.zip": "zip"}


@pytest.mark.parametrize("name", KINDS)
def test_archives_are_unpacked(name: str, play: Play) -> None:
    made = shutil.make_archive(str(play.folder / "made"), KINDS[name], play.source)
    path = Path(made).rename(play.folder / name)
    digest = sha256(path)
    assert play.unpack(name) == "changed"
    assert content(play.place) == content(play.source)
    path.unlink()  # with a hash, the source is no longer needed
    assert play.act(src=name, sha256=digest) == "nothing"


def test_what_stays_packed(play: Play) -> None:
    (play.folder / "a.idx.gz").write_bytes(gzip.compress(b"inside"))
    play.unpack("a.idx.gz")
    assert list(content(play.place)) == ["a.idx.gz"]
    play.act(src="a.idx.gz", sha256=sha256(play.folder / "a.idx.gz"), unpack=True)
    # The packed file belonged to the role, and is removed.
    assert content(play.place) == {"a.idx": b"inside"}
    (play.folder / "a.zip").write_bytes(b"no zip at all")
    assert "unpack: false" in play.unpack("a.zip")


def write_tar(path: Path, members: list[tuple[str, str]]) -> None:
    """Write an archive with two folders, links, hard links ("=name") and files (no target)."""
    with tarfile.open(path, "w") as packed:
        for name, link in [("a", "folder"), ("a/b", "folder"), *members]:
            info, text = tarfile.TarInfo(name), b"" if link else b"bad"
            if link == "folder":
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            elif link:
                info.type = tarfile.LNKTYPE if link.startswith("=") else tarfile.SYMTYPE
                info.linkname = link.removeprefix("=")
            info.size = len(text)
            packed.addfile(info, io.BytesIO(text))


UP = ("a/b/up", "../..")
OUTSIDE = "points outside"
TWICE = "as a link and as another member"


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("../bad", "")], OUTSIDE),
        ([("/tmp/bad-of-the-test", "")], OUTSIDE),
        ([("a/../../bad", "")], OUTSIDE),
        ([("way", "/etc"), ("good", "")], OUTSIDE),
        ([("way", "../.."), ("good", "")], OUTSIDE),
        ([("way", ".."), ("way/bad", "")], TWICE),
        ([("good", "=/etc/passwd")], "cannot be unpacked"),
        # Each link alone stays inside, but the combination of links leads outside.
        ([UP, ("secret", "a/b/up/../outside/bad"), ("secret", "")], TWICE),
        ([UP, ("out", "a/b/up/../outside"), ("out/bad", "")], TWICE),
        ([UP, ("out", "a/b/up/../outside"), ("out/bad", "x")], OUTSIDE),
        ([("out", "a/b/x/../outside"), ("a/b/x", "../.."), ("good", "")], OUTSIDE),
        ([("secret", ""), UP, ("secret", "a/b/up/../outside/bad")], TWICE),
        ([("a", "."), ("a/b", "/"), ("a/b/tmp/bad-of-the-test", "")], TWICE),
    ],
)
def test_an_archive_cannot_write_elsewhere(members: Any, message: str, play: Play) -> None:
    write_tar(play.folder / "a.tar", members)
    # Transfers in progress are two levels further down.
    outside = play.root / ".training_data/data/outside"
    outside.mkdir(parents=True)
    assert message in play.unpack("a.tar")
    assert [path for path in play.folder.rglob("*") if path.name in ("bad", "x", "unpacked")] == []
    assert not list(outside.iterdir())
    assert not Path("/tmp/bad-of-the-test").exists()
    assert not play.place.exists()


def test_links_within_an_archive_are_replaced_with_it(play: Play) -> None:
    write_tar(play.folder / "a.tar", [("way", "deep/../deep"), ("deep/good", "")])
    assert play.unpack("a.tar") == "changed"
    assert (play.place / "way" / "good").read_bytes() == b"bad"
    write_tar(play.folder / "a.tar", [("other", "")])
    assert play.unpack("a.tar") == "changed"
    assert sorted(os.listdir(play.place)) == ["a", "other"]
