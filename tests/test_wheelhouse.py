"""The folder of wheels for hosts without a network."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from ansible.errors import AnsibleActionFail

from roles.tensorflow.control import locks, wheels
from tests.host_roles import load
from tests.tensorflow_role import HERE, ROLE, make_lock, make_wheel

arrivals = load(ROLE / "library" / "tensorflow_wheels.py")

LOCK = """\
# made by a tool
a==1 \\
    --hash=sha256:aa \\
    --hash=sha256:ab
    # via b
numpy==2.4 ; python_full_version < '3.12' \\
    --hash=sha256:bb
numpy==2.5 ; python_full_version >= '3.12' \\
    --hash=sha256:cc
mac==1 ; sys_platform == 'darwin' \\
    --hash=sha256:dd
"""


@pytest.mark.parametrize(("python", "numpy"), [("3.11", "2.4"), ("3.12", "2.5"), ("3.12.4", "2.5")])
def test_conditions_are_judged_for_the_hosts_python(python: str, numpy: str) -> None:
    digest = {"2.4": "bb", "2.5": "cc"}[numpy]
    assert locks.requirement_lines(locks.applying(locks.parse(LOCK), python)).splitlines() == [
        "a==1 --hash=sha256:aa --hash=sha256:ab",
        f"numpy=={numpy} --hash=sha256:{digest}",
    ]


def test_the_platforms_of_a_host() -> None:
    tags = wheels.platforms("manylinux_2_18_x86_64")
    assert tags[:3] == ["manylinux_2_18_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"]
    assert tags[-2:] == ["manylinux_2_5_x86_64", "manylinux1_x86_64"]
    with pytest.raises(AnsibleActionFail, match="tensorflow_wheelhouse_platform is 'linux_x86_64'"):
        wheels.platforms("linux_x86_64")


def write_wheels(folder: Path, *names: str) -> dict[str, str]:
    """Files in place of wheels, and their hashes by name."""
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(name)
    return {name: hashlib.sha256(name.encode()).hexdigest() for name in names}


def pins_of(sums: dict[str, str], *names: str) -> list[locks.Pin]:
    text = ""
    for name in names:
        project, version = name.split("-")[:2]
        hashes = [f"--hash=sha256:{digest}" for file, digest in sums.items() if project in file]
        text += f"{project}=={version} {' '.join(hashes)}\n"
    return locks.parse(text)


GRPC = "grpcio-1.0-{0}-{0}-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
PURE, STABLE = "six-1.0-py2.py3-none-any.whl", "protobuf-7.0-cp310-abi3-manylinux2014_x86_64.whl"


def test_a_host_gets_what_fits_it(tmp_path: Path) -> None:
    sums = write_wheels(
        tmp_path,
        GRPC.format("cp311"),
        GRPC.format("cp312"),
        PURE,
        STABLE,
        "other-1-py3-none-any.whl",
    )
    pins = pins_of(sums, GRPC, PURE, STABLE)
    chosen = wheels.select(tmp_path, pins, "3.11.2")
    assert [wheel.name for wheel in chosen] == [GRPC.format("cp311"), PURE, STABLE]
    assert [wheel.sha256 for wheel in chosen] == [sums[wheel.name] for wheel in chosen]
    assert [wheel.size for wheel in chosen] == [len(wheel.name) for wheel in chosen]


def test_what_a_host_lacks_is_named(tmp_path: Path) -> None:
    sums = write_wheels(tmp_path, GRPC.format("cp311"), STABLE)
    with pytest.raises(AnsibleActionFail) as refused:
        wheels.select(tmp_path, pins_of(sums, GRPC, STABLE), "3.13.1")
    said = str(refused.value)
    assert f"{tmp_path} has no wheel for Python 3.13.1 of grpcio 1.0. Fill it with" in said
    assert "tensorflow_wheelhouse_pythons with 3.13" in said
    with pytest.raises(AnsibleActionFail, match="there is no folder /nowhere on the control node"):
        wheels.select(Path("/nowhere"), [], "3.11")


def test_another_file_than_the_locked_one_is_none(tmp_path: Path) -> None:
    sums = write_wheels(tmp_path, PURE)
    pins = pins_of(sums, PURE)
    (tmp_path / PURE).write_text("changed")
    with pytest.raises(AnsibleActionFail, match=r"of six 1\.0"):
        wheels.select(tmp_path, pins, "3.11")


@pytest.fixture
def stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which pip finds wheels, and nowhere else; the lock of them lies beside it."""
    folder = tmp_path / "stock"
    made = [make_wheel(folder, "1.0"), make_wheel(folder, "2.0", name="frobnicate")]
    make_lock(tmp_path / "lock.txt", *made)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_filled_once_and_mended(stock: Path, tmp_path: Path) -> None:
    folder, lock = tmp_path / "house", tmp_path / "lock.txt"
    names = sorted(path.name for path in stock.iterdir())
    assert wheels.fill(folder, [lock], [HERE]) == names
    assert sorted(wheels.read_sums(folder)) == names
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "SHA256SUMS", *names]

    shutil.move(stock, tmp_path / "gone")  # a folder that is full needs no index
    assert wheels.lacking(folder, [lock], [HERE], wheels.PLATFORM) == []
    assert wheels.fill(folder, [lock], [HERE]) == []
    shutil.move(tmp_path / "gone", stock)

    for content in (None, b"torn"):
        (folder / names[0]).unlink()
        if content:
            (folder / names[0]).write_bytes(content)
        assert wheels.lacking(folder, [lock], [HERE], wheels.PLATFORM) == [(lock, HERE)]
        wheels.fill(folder, [lock], [HERE])
        assert (folder / names[0]).read_bytes() == (stock / names[0]).read_bytes()


def test_a_folder_filled_by_hand_will_do(stock: Path, tmp_path: Path) -> None:
    pins = locks.read_pins(str(tmp_path / "lock.txt"), HERE)
    assert len(wheels.select(stock, pins, HERE)) == 2
    assert wheels.fill(stock, [tmp_path / "lock.txt"], [HERE]) == []
    assert len(wheels.read_sums(stock)) == 2


def test_a_wrong_file_at_the_source_is_refused(stock: Path, tmp_path: Path) -> None:
    make_wheel(stock, "1.0", "evil = True\n")
    with pytest.raises(AnsibleActionFail, match="could not download the wheels of") as refused:
        wheels.fill(tmp_path / "house", [tmp_path / "lock.txt"], [HERE])
    assert "DO NOT MATCH THE HASHES" in str(refused.value)
    assert not (tmp_path / "house" / "SHA256SUMS").exists()


# On the host


def describe(source: Path) -> list[dict[str, object]]:
    return [
        {
            "name": path.name,
            "size": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(source.iterdir())
    ]


def test_only_whole_wheels_are_taken_in(tmp_path: Path) -> None:
    source, arrived = tmp_path / "source", tmp_path / "arrived"
    write_wheels(source, "a.whl", "b.whl", "c.whl")
    wanted = describe(source)
    folder = str(tmp_path / "wheels" / "host")
    assert arrivals.run(folder, wanted, "") == ["a.whl", "b.whl", "c.whl"]
    arrived.mkdir()
    shutil.copy(source / "a.whl", arrived)
    (arrived / "b.whl").write_text("b.wh")  # torn
    (arrived / "c.whl").write_text("C.whl")  # damaged, of the right size
    assert arrivals.run(folder, wanted, str(arrived)) == ["b.whl", "c.whl"]
    # The next run sends these two alone, and trusts no file by its size.
    assert arrivals.run(folder, wanted, "") == ["b.whl", "c.whl"]
    Path(folder, "a.whl").write_text("A.whl")
    Path(folder, "old.whl").write_text("")
    assert arrivals.run(folder, wanted, "") == ["a.whl", "b.whl", "c.whl"]
    assert not Path(folder, "old.whl").exists()
    assert arrivals.run(folder, [], "") == []
    assert not (tmp_path / "wheels").exists()
