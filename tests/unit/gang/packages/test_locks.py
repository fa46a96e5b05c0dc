"""The lock of a script's requirements within TensorFlow's environment."""

from __future__ import annotations

import re

import pytest

from tests.unit.gang.packages.conftest import BARE, JAX_BASE, Lab
from train.gang.errors import UserError


def test_a_lock_has_what_tensorflows_environment_lacks(lab: Lab) -> None:
    (alpha,) = lab.lock("tensorflow>=2.10\nnumpy\nAlpha>1\n")
    assert alpha == "alpha==2.0"
    assert [path.name for path in lab.made.wheels.iterdir()] == ["alpha-2.0-py3-none-any.whl"]
    assert 'name = "alpha"' in lab.made.pylock.read_text()


@pytest.mark.parametrize("text", ["tensorflow", "numpy\n", "keras>3\ntensorflow-gpu\n"])
def test_nothing_is_locked_that_is_there(lab: Lab, text: str) -> None:
    assert lab.lock(text) == []


def test_a_package_that_needs_tensorflow_gets_the_locked_one(lab: Lab) -> None:
    assert [line.split("==")[0] for line in lab.lock("trains")] == ["trains"]


@pytest.mark.parametrize(
    ("base", "text", "names"),
    [
        (JAX_BASE, "jax\nkeras\n", []),
        (JAX_BASE, "jax[cuda12]>=0.4\nnumpy\n", []),
        (JAX_BASE, "jax[k8s]\n", ["alpha"]),
        (JAX_BASE, "alpha\n", ["alpha"]),
        # TensorFlow is installed only if the script requests it by name.
        (JAX_BASE, "trains\n", ["trains"]),
        (JAX_BASE, "trains\ntensorflow-cpu\n", ["tensorflow-cpu", "trains"]),
        (BARE, "trains\n", ["trains"]),
        (BARE, "tensorflow\n", ["tensorflow"]),
        (BARE, "jax[cuda12]\n", ["cudas", "jax"]),
        (BARE, "alpha\nnumpy\n", ["alpha", "numpy"]),
    ],
)
def test_what_other_frameworks_lack(lab: Lab, base: str, text: str, names: list[str]) -> None:
    lab.base.write_text(base)
    assert [line.split("==")[0] for line in lab.lock(text)] == names


@pytest.mark.parametrize(
    ("base", "text", "message", "way_out"),
    [
        (JAX_BASE, "jax==0.4", "but the environment of JAX 0.10.2 has jax 0.10.2", "lock JAX with"),
        (JAX_BASE, "old", "newer together with the environment of JAX 0.10.2:", "lock JAX with"),
        (
            BARE,
            "old\nnumpy>=2",
            "cannot be resolved for Python 3.11 and newer: Because",
            "; or tra",
        ),
    ],
)
def test_contradictions_name_the_framework(
    lab: Lab, base: str, text: str, message: str, way_out: str
) -> None:
    lab.base.write_text(base)
    with pytest.raises(UserError, match=re.escape(message)) as refused:
        lab.lock(text)
    assert way_out in str(refused.value)
    assert "TensorFlow" not in str(refused.value)


def test_the_same_file_gives_the_same_packages_until_it_changes(lab: Lab) -> None:
    assert lab.lock("alpha<2")[0].startswith("alpha==1.0")
    folder = lab.made.folder
    lab.lock("alpha<2   # a comment\n")
    assert lab.made.folder == folder
    lab.lock("alpha<3")
    assert lab.made.folder != folder
    assert sorted(path.name for path in folder.parent.glob(".*")) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "alpha\nnumpy==1.23.5",
            "line 4 requires numpy==1.23.5, but the environment of TensorFlow",
        ),
        ("numpy<2.1", "has numpy 2.2.0"),
        ("keras<3", "has keras 3.15.1"),
        ("tensorflow==2.12", "has tensorflow-cpu 2.21.0"),
        ("tensorflow-gpu==2.12", "has tensorflow-cpu 2.21.0"),
        ("old", "all versions of old depend on numpy<2"),
        ("nowhere", "nowhere was not found"),
        ("alpha==9", "there is no version of alpha==9"),
        ("-c limits.txt\nalpha", "you require alpha<1"),
        ("compiled", "compiled 1.0 has no wheel for Python 3.13 on node-3.13"),
    ],
)
def test_a_contradiction_is_one_message_with_a_way_out(lab: Lab, text: str, message: str) -> None:
    (lab.folder / "limits.txt").write_text("alpha<1\n")
    with pytest.raises(UserError, match=re.escape(message)) as refused:
        lab.lock(text, "3.11", "3.13")
    said = str(refused.value)
    assert "tensorflow_requirements" in said or "tensorflow_python" in said
    assert list((lab.folder / "cache").glob("*")) == []


def test_a_marker_limits_a_requirement_to_some_hosts(lab: Lab) -> None:
    text = 'numpy==1.0 ; python_version < "3.9"\ncompiled ; python_version < "3.12"\n'
    assert lab.lock(text, "3.11", "3.13")[0].startswith("compiled==1.0 ; ")


def test_extras_are_resolved(lab: Lab) -> None:
    names = [line.split("==")[0] for line in lab.lock("extended[more]")]
    assert names == ["alpha", "extended"]
