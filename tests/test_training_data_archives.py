"""The role ``training_data``: archives are unpacked, and not out of their folder."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.training_data_role import Make, content, sha256

pytest_plugins = ("tests.training_data_role",)


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz", "a.tar.xz", "a.zip"])
def test_archives_are_unpacked(name: str, make: Make, source: Path, tmp_path: Path) -> None:
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
    assert action.act()["changed"]
    assert content(action.root / "data") == content(source)
    path.unlink()  # with a hash, the source is not needed any more
    assert not make(entry).act()["changed"]


def test_gz_stays_packed_unless_asked(make: Make, tmp_path: Path) -> None:
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
    name: str, link: str, make: Make, tmp_path: Path
) -> None:
    evil(tmp_path / "a.tar", name, link)
    action = make({"name": "data", "src": "a.tar", "sha256": sha256(tmp_path / "a.tar")})
    result = action.act()
    assert "points outside" in result["msg"]
    assert not list(tmp_path.rglob("bad*"))
    assert not (action.root / "data").exists()


#: Each link seems to stay inside, by its words; what they come to together does not.
CHAINS: dict[str, list[tuple[str, str | None]]] = {
    "a file that a link stands for": [
        ("a/b/up", "../.."),
        ("secret", "a/b/up/../outside/bad"),
        ("secret", None),
    ],
    "a folder": [("a/b/up", "../.."), ("out", "a/b/up/../outside"), ("out/bad", None)],
    "a link through a link": [("a/b/up", "../.."), ("out", "a/b/up/../outside"), ("out/bad", "x")],
    "a link over a later one": [("out", "a/b/x/../outside"), ("a/b/x", "../.."), ("good", None)],
    "another order": [("secret", None), ("a/b/up", "../.."), ("secret", "a/b/up/../outside/bad")],
    "absolute": [("a", "."), ("a/b", "/"), ("a/b/tmp/bad-of-the-test", None)],
}


@pytest.mark.parametrize("chain", CHAINS)
def test_links_together_lead_nowhere_else(chain: str, make: Make, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as packed:
        for folder in ("a", "a/b"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            packed.addfile(info)
        for name, link in CHAINS[chain]:
            info = tarfile.TarInfo(name)
            if link is None:
                info.size = 3
                packed.addfile(info, io.BytesIO(b"bad"))
            else:
                info.type, info.linkname = tarfile.SYMTYPE, link
                packed.addfile(info)
    action = make({"name": "data", "src": "a.tar", "sha256": sha256(tmp_path / "a.tar")})
    # What is under way lies two folders below.
    outside = action.root / ".training_data/data/outside"
    outside.mkdir(parents=True)
    result = action.act()
    assert "in the archive" in result["msg"]
    assert not list(outside.iterdir())
    assert not Path("/tmp/bad-of-the-test").exists()
    assert not (action.root / "data").exists()


def test_a_hard_link_to_nothing_is_a_broken_archive(make: Make, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as packed:
        info = tarfile.TarInfo("good")
        info.type, info.linkname = tarfile.LNKTYPE, "/etc/passwd"
        packed.addfile(info)
    action = make({"name": "data", "src": "a.tar", "sha256": sha256(tmp_path / "a.tar")})
    result = action.act()
    assert "a.tar cannot be unpacked" in result["msg"]
    assert not (action.root / "data").exists()


def test_links_within_an_archive(make: Make, tmp_path: Path) -> None:
    evil(tmp_path / "a.tar", "deep/good", "deep/../deep")
    action = make({"name": "data", "src": "a.tar", "sha256": sha256(tmp_path / "a.tar")})
    assert "msg" not in action.act()
    assert (action.root / "data" / "way" / "good").read_bytes() == b"bad"


def test_a_broken_archive(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"no zip at all")
    result = make({"name": "data", "src": "a.zip", "sha256": sha256(tmp_path / "a.zip")}).act()
    assert "unpack: false" in result["msg"]
