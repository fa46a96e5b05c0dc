"""Archives of results that a host sends: nothing is written outside of its folders."""

from __future__ import annotations

import contextlib
import re
import string
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.gang.hostile import CASES, DIR, FILE, LINK, OSC, archive_of, snapshot
from train.gang import archives


@pytest.mark.parametrize(
    ("members", "why"),
    [
        # The first three were exploits: variables with a template that ran, and a log to append to.
        ([("variables.json", FILE, b"{}")], "variables.json, which is not in model or tensorboard"),
        ([("logs/chief-0.log", LINK, "/root/.bashrc")], "is not in model or tensorboard"),
        ([("model", LINK, "/tmp"), ("model/x", FILE, b"")], "neither a folder nor a file"),
        ([("model/../../x", FILE, b"x")], "is not in model or tensorboard"),
        ([("/model/x", FILE, b"x")], "is not in model or tensorboard"),
        ([("model", FILE, b"x")], "model, which is neither a folder nor a file"),
        ([("model/pipe", tarfile.FIFOTYPE, b"")], "neither a folder nor a file inside one"),
        ([("model/hard", tarfile.LNKTYPE, "../x")], "neither a folder nor a file inside one"),
        ([("model/large", FILE, b"x" * 3000)], "train_job_results_limit_mb"),
        ([("model/huge", FILE, 1 << 50)], "train_job_results_limit_mb"),
        ([(f"model/{n}", FILE, b"") for n in range(20)], "train_job_results_limit_files"),
        ([(f"model/a{OSC}b", FILE, b""), ("x", FILE, b"")], "x, which is not in model"),
    ],
)
def test_an_archive_that_escapes_is_refused(tmp_path: Path, members: list[Any], why: str) -> None:
    run_dir = tmp_path / "runs" / "job"
    (run_dir / "model").mkdir(parents=True)
    (run_dir / "model" / "earlier").write_text("kept")
    archive = archive_of(tmp_path / "results.tar.gz", members)
    before = snapshot(tmp_path)
    with pytest.raises(archives.ArchiveError, match=re.escape(why)):
        archives.unpack(archive, run_dir, ("model", "tensorboard"), 2000, 10)
    assert snapshot(tmp_path) == before


def test_an_archive_of_results_takes_the_place_of_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "earlier").write_text("gone")
    (tmp_path / "tensorboard").symlink_to("/tmp")
    members = [("model", DIR, b""), ("model/a/b", FILE, b"new"), ("tensorboard/events", FILE, b"e")]
    archive = archive_of(tmp_path / "results.tar.gz", members)
    archives.unpack(archive, tmp_path, ("model", "tensorboard"), 2000, 10)
    archive.unlink()
    assert [name for name in snapshot(tmp_path) if "." not in name] == [
        *("model", "model/a", "model/a/b", "tensorboard", "tensorboard/events")
    ]
    assert not (tmp_path / "tensorboard").is_symlink()


INSIDE = ["model", "model/a", "model/a/c", "tensorboard/b"]
NAMES = [*INSIDE, "model/../x", "/x", "../x", "logs/a", "./model/a"]
LINKS = ["/etc/passwd", "..", "../../outside", "model/a"]
KINDS = [FILE, FILE, DIR, LINK, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
MEMBERS = st.lists(
    st.tuples(
        st.sampled_from(NAMES) | st.text(string.printable, max_size=12),
        st.sampled_from(KINDS),
        st.sampled_from(LINKS) | st.binary(max_size=50) | st.integers(0, 1 << 40),
    ),
    max_size=6,
)


@CASES
@given(members=MEMBERS, cut=st.none() | st.integers(0, 200), noise=st.binary(max_size=4))
def test_no_archive_writes_outside_of_its_folders(
    tmp_path: Path, members: list[Any], cut: int | None, noise: bytes
) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        run_dir = Path(folder, "runs", "job")
        run_dir.mkdir(parents=True)
        Path(folder, "outside").write_text("untouched")
        archive = Path(folder, "results.tar.gz")
        try:
            archive_of(archive, members)
        except (tarfile.TarError, ValueError, OSError):
            return  # Python cannot write such an archive
        data = archive.read_bytes()
        archive.write_bytes(data if cut is None else data[:cut] + noise + data[cut + len(noise) :])
        with contextlib.suppress(archives.ArchiveError):
            archives.unpack(archive, run_dir, ("model", "tensorboard"), 10_000, 20)
        changed = set(snapshot(Path(folder))) - {"runs", "runs/job", "outside", "results.tar.gz"}
        assert all(re.match("runs/job/(model|tensorboard)(/|$)", name) for name in changed)
        assert Path(folder, "outside").read_text() == "untouched"
        assert not any(path.is_symlink() for path in Path(folder).rglob("*"))


@pytest.fixture(params=["data_filter", "no data_filter"])
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``tarfile`` be as in this Python, or as before 3.11.4, for example in Debian 12."""
    if request.param == "no data_filter":
        extract = tarfile.TarFile._extract_one  # type: ignore[attr-defined]

        def old(self: Any, member: tarfile.TarInfo, path: str = "") -> None:
            extract(self, member, path, set_attrs=True, numeric_owner=False)

        monkeypatch.delattr(tarfile, "data_filter")
        monkeypatch.setattr(tarfile.TarFile, "extract", old)


@pytest.mark.usefixtures("python")
def test_a_file_is_extracted_without_special_permissions(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "code.tar", "w") as packed:
        member = tarfile.TarInfo("code/main.py")
        member.mode, member.uid, member.uname = 0o6777, 12_345, "nobody"
        packed.addfile(member)
    with tarfile.open(tmp_path / "code.tar") as tar:
        for found in tar:
            archives.extract(tar, found, tmp_path)
    made = (tmp_path / "code/main.py").stat()
    assert (made.st_mode & 0o7777, made.st_uid) == (0o755, tmp_path.stat().st_uid)


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize(
    ("name", "kind"),
    [("../x", FILE), ("/tmp/x", FILE), ("code/x", LINK), ("code/x", tarfile.LNKTYPE)],
)
def test_nothing_is_extracted_elsewhere(tmp_path: Path, name: str, kind: bytes) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with tarfile.open(archive_of(tmp_path / "code.tar.gz", [(name, kind, "/etc/passwd")])) as tar:
        for found in tar:
            with pytest.raises(archives.ArchiveError, match="is neither a file nor a folder in it"):
                archives.extract(tar, found, folder)
    assert snapshot(folder) == {}
