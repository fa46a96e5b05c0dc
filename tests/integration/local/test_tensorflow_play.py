"""The role ``tensorflow`` in playbooks: with wheels on the host, from an index, from here."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.data_folders import serving
from tests.support.lab import REPOSITORY
from tests.support.set_up_role import Play, role_task, run_plays
from tests.support.tensorflow_role import HERE, make_lock, make_wheel, shown_version

Run = Callable[..., Play]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a playbook for inventory hosts on this machine, with a lock of the stand-in."""
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
        # The role on every inventory host, where setup.yml takes one of each machine.
        task = role_task("tensorflow", entry)
        play: dict[str, Any] = {"hosts": "all", "gather_facts": False, "tasks": [task]}
        if entry == "wheelhouse":
            play = {"ansible.builtin.import_playbook": f"{REPOSITORY}/playbooks/wheelhouse.yml"}
        return run_plays(tmp_path, inventory, [play], "-e", json.dumps(extra), *options)

    return run


def test_what_is_refused_before_anything_is_done(play: Run, tmp_path: Path) -> None:
    """Each host has a mistake of its own, and its own message."""
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
        ({"tensorflow_root": "train"}, "tensorflow_root is 'train': write an absolute path"),
        ({"tensorflow_keep": -1}, "tensorflow_keep is -1: write how many environments stay"),
        ({"tensorflow_python_supported": ["3.10"]}, "supported is ['3.10']: write the oldest and"),
        (both, "tensorflow_wheelhouse and tensorflow_wheelhouse_source are both set"),
        ({"tensorflow_wheelhouse_source": "wheels"}, "is 'wheels': write an absolute path"),
        (without, f"{wheels} on the control node has no wheel for Python"),
        (without, "of frobnicate 1.5. Fill it with playbooks/wheelhouse.yml"),
        (clashing, "tensorflow-cpu 0.9 (there: 1.0). Lock it within"),
        (none, "tensorflow_extra_requirements: there is no lock file"),
    ]
    for name in ("jobs", "venvs", "a/b", "..", "-x", ""):
        cases.append(({"tensorflow_environment": name}, f"is '{name}': take a name"))
    for url in ("pypi.s3cret/simple", "https:s3cret"):
        cases.append(({"tensorflow_index_url": url}, "index_url is no address of a package index"))
    for options in (("--check",), ()):
        done = play(*options, hosts=[wrong for wrong, _ in cases])
        assert {row["failed"] for row in done.counts.values()} == {1}, done.shown
        for number, (_, message) in enumerate(cases):
            shown = [part for part in done.shown.split("[ERROR]") if message in part]
            assert any(f"worker-{number}]: FAILED" in part for part in shown), message
        assert "s3cret" not in done.shown
    assert not (tmp_path / "root").exists()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an index that serves the stand-in, with a password."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    make_wheel(tmp_path / "index" / "simple" / "tensorflow-cpu", "1.0")
    with serving(tmp_path / "index") as port:
        yield f"http://reader:s3cret@127.0.0.1:{port}/simple"


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
    """The playbook fills it from an index; it keeps what is whole, and fixes what is not."""
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
    # What is there and whole needs no index; what is damaged is downloaded again.
    assert play(**fill, tensorflow_index_url=UNREACHABLE).changed == 0
    good = wheel.read_bytes()
    wheel.write_bytes(b"x" * len(good))
    assert play(**fill, tensorflow_index_url=index).code == 0
    assert wheel.read_bytes() == good


def test_what_the_control_node_sends_is_installed_and_removed(play: Run, tmp_path: Path) -> None:
    """Wheels for TensorFlow and packages on top, to two inventory hosts of a machine."""
    top = make_wheel(tmp_path / "wheels", "1.5", name="frobnicate")
    large = make_wheel(tmp_path / "wheels", "1.0", f"# {'x' * 20_000_000}\n")
    given = {
        "hosts": [{}, {}],
        "tensorflow_wheelhouse_source": str(tmp_path / "wheels"),
        "tensorflow_requirements": str(make_lock(tmp_path / "large.txt", large)),
        "tensorflow_environment": "paper",
        "tensorflow_extra_requirements": str(make_lock(tmp_path / "extra.txt", top)),
    }
    done = play(**given)
    assert done.code == 0, done.shown
    installing = done.shown.split("Install, try and link")[1].split("TASK")[0]
    assert (installing.count("changed: "), installing.count("ok: ")) == (1, 1)
    assert f"(item={large.name})" in done.shown
    assert f"(item={top.name})" not in done.shown  # in the archive
    link = tmp_path / "root" / "paper"
    assert (shown_version(link), shown_version(link, "frobnicate")) == ("1.0", "1.5")
    assert [path.name for path in link.parent.glob("venvs/.*")] == [".lock"]
    assert play(**given).changed == 0

    (link.parent / "jobs").mkdir()
    done = play(entry="remove")
    assert (done.code, done.changed) == (0, 1), done.shown
    assert "root stays, with jobs." in done.shown
    assert [path.name for path in link.parent.iterdir()] == ["jobs"]
