"""The role ``tensorflow`` in playbooks."""

from __future__ import annotations

from pathlib import Path

from tests.tensorflow_role import Play, counts, make_lock, make_wheel, shown_version

pytest_plugins = ("tests.tensorflow_role",)


def test_a_machine_is_set_up_once_and_cleared(play: Play, tmp_path: Path) -> None:
    wheels, root = str(tmp_path / "wheels"), tmp_path / "root"
    checked = play("--check", "--diff", playbook="setup", tensorflow_wheelhouse=wheels)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "+venv -> tensorflow-1.0-cpu" in checked.stdout
    assert sum(counts(checked.stdout, "changed")) == 1
    assert not root.exists()
    first = play(playbook="setup", tensorflow_wheelhouse=wheels)
    assert first.returncode == 0, first.stdout + first.stderr
    assert shown_version(root / "venv") == "1.0"
    assert [path.name for path in (root / "venvs").glob(".*")] == [".lock"]
    second = play(playbook="setup", tensorflow_wheelhouse=wheels)
    assert (second.returncode, set(counts(second.stdout, "changed"))) == (0, {0})

    (root / "jobs").mkdir()
    assert counts(play("--check", playbook="remove").stdout, "changed") == [1]
    done = play(playbook="remove")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "root stays, with jobs." in " ".join(done.stdout.split())
    assert [path.name for path in root.iterdir()] == ["jobs"]
    assert counts(play(playbook="remove").stdout, "changed") == [0]


def test_wrong_arguments_fail_before_anything_is_done(play: Play, tmp_path: Path) -> None:
    wheels = str(tmp_path / "wheels")
    for variables, said in [
        ({"tensorflow_variant": "tpu"}, "value of tensorflow_variant must be one of"),
        ({"tensorflow_requirements": "my.txt"}, "there is no lock file my.txt on the control node"),
        ({"tensorflow_variant": "gpu"}, "tensorflow_variant is gpu, but the lock is"),
        (
            {"tensorflow_wheelhouse": wheels, "tensorflow_wheelhouse_source": wheels},
            "tensorflow_wheelhouse and tensorflow_wheelhouse_source are both set",
        ),
        (
            {"tensorflow_wheelhouse_source": "wheels"},
            "tensorflow_wheelhouse_source is 'wheels': write an absolute path",
        ),
    ]:
        done = play(**variables)
        assert done.returncode != 0
        assert said in done.stdout + done.stderr
    assert not (tmp_path / "root").exists()


def test_extras_from_the_playbook_to_the_end(play: Play, tmp_path: Path) -> None:
    stock = tmp_path / "wheels"
    top = make_wheel(stock, "1.5", name="frobnicate")
    good = make_lock(tmp_path / "good.txt", top)
    other = make_wheel(stock, "0.9", name="tensorflow-cpu")
    clash = make_lock(tmp_path / "clash.txt", top, other)
    (tmp_path / "bare.txt").write_text("frobnicate==1.5\n")
    named = {"tensorflow_environment": "paper", "tensorflow_wheelhouse_source": str(stock)}
    for option, lock, said in [
        ("--check", str(clash), "tensorflow-cpu 0.9 (there: 1.0). Lock it within"),
        ("--diff", str(clash), "tensorflow-cpu 0.9 (there: 1.0). Lock it within"),
        ("--diff", str(tmp_path / "bare.txt"), "line 1 (frobnicate==1.5) has no hash"),
        ("--diff", "none.txt", "tensorflow_extra_requirements: there is no lock file none.txt"),
    ]:
        refused = play(option, **named, tensorflow_extra_requirements=lock)
        assert refused.returncode != 0
        assert said in refused.stdout + refused.stderr
    assert not (tmp_path / "root").exists()
    done = play(**named, tensorflow_extra_requirements=str(good))
    assert done.returncode == 0, done.stdout + done.stderr
    link = tmp_path / "root" / "paper"
    assert (shown_version(link), shown_version(link, "frobnicate")) == ("1.0", "1.5")
    again = play(**named, tensorflow_extra_requirements=str(good))
    assert counts(again.stdout, "changed") == [0]
