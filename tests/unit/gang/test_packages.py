"""What a script asks for, and its lock. Packages come from a folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import wheels
from train.gang.errors import UserError
from train.gang.packages import locks, requested, uv
from train.gang.packages.names import package_of

#: What the environment of TensorFlow has in these tests.
BASE = """\
numpy==2.0.1 ; python_full_version < '3.13' \\
    --hash=sha256:00
numpy==2.2.0 ; python_full_version >= '3.13' \\
    --hash=sha256:01
keras==3.15.1 \\
    --hash=sha256:02
tensorflow-cpu==2.21.0 \\
    --hash=sha256:03
"""
WHEELS = {
    "numpy-2.0.1-py3-none-any": "",
    "numpy-2.2.0-py3-none-any": "",
    "alpha-1.0-py3-none-any": "Requires-Dist: numpy",
    "alpha-2.0-py3-none-any": "Requires-Dist: numpy>=2",
    "old-1.0-py3-none-any": "Requires-Dist: numpy<2",
    "compiled-1.0-cp311-cp311-manylinux_2_17_x86_64": "",
    "extended-1.0-py3-none-any": "Provides-Extra: more\nRequires-Dist: alpha; extra == 'more'",
    "trains-1.0-py3-none-any": "Requires-Dist: tensorflow>=2",
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    for name, metadata in WHEELS.items():
        wheels.write(folder, name, metadata)
    return folder


class Lab:
    def __init__(self, folder: Path, index: Path) -> None:
        self.folder, self.index = folder, index
        self.base = folder / "base.txt"
        self.base.write_text(BASE)
        self.file = folder / "requirements.txt"

    def read(self, text: str) -> requested.Requested:
        self.file.write_text(f"--no-index\n--find-links {self.index}\n{text}")
        return requested.read(self.file)

    def lock(self, text: str, *pythons: str) -> list[str]:
        hosts = {python: [f"node-{python}"] for python in pythons or ("3.11",)}
        cache = self.folder / "cache"
        self.made = locks.make(self.read(text), [self.base], hosts, cache)
        lines = self.made.requirements.read_text().splitlines()
        assert all(" --hash=sha256:" in line for line in lines)
        return [line.split(" --hash")[0] for line in lines]


@pytest.fixture
def lab(tmp_path: Path, index: Path) -> Lab:
    return Lab(tmp_path, index)


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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("git+https://me:secret@host/x", "git+https://***@host/x has no hash"),
        ("x @ git+https://host/x@main", "has no hash"),
        ("x @ https://host/x-1-py3-none-any.whl", "has no hash"),
        ("./x.whl", "is a path on this control node"),
        ("dist/x-1.0.tar.gz", "is a path on this control node"),
        ("-e .", "would be an editable install of a folder on this control node"),
        ("--editable=../lib", "would be an editable install of a folder on this control node"),
        ("--install-option=x", "the option --install-option is not supported"),
        ("foo bar", "is not a requirement such as pandas>=2.1"),
        ("pandas=>2", "is not a requirement such as pandas>=2.1"),
        ("pip install pandas", "is not a requirement such as pandas>=2.1"),
        ("alpha \\", "ends in a backslash"),
        ("-r missing.txt", "no such file"),
        ("-r requirements.txt", "includes itself"),
        ("# nothing", "lists no packages"),
    ],
)
def test_what_cannot_be_taken_is_refused_by_line(lab: Lab, text: str, reason: str) -> None:
    with pytest.raises(UserError, match=re.escape(reason)) as refused:
        lab.read(f"\n{text}")
    assert "secret" not in str(refused.value)


def test_all_lines_that_cannot_be_taken_are_named_at_once(lab: Lab) -> None:
    with pytest.raises(UserError) as refused:
        lab.read("alpha\n./a.whl\nb c\n")
    lines = str(refused.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "requirements.txt, line 4",
        "requirements.txt, line 5",
    ]


def test_files_that_are_named_are_read_with_their_own_places(lab: Lab) -> None:
    (lab.folder / "more.txt").write_text("beta==1 --hash=sha256:00\n\ngamma \\\n  >= 2\n")
    found = lab.read("-rmore.txt\nalpha\n")
    assert [(line.place, str(line.requirement)) for line in found.packages] == [
        ("more.txt, line 1", "beta==1"),
        ("more.txt, line 4", "gamma>=2"),
        ("requirements.txt, line 4", "alpha"),
    ]
    assert found.indexes == ("--no-index", f"--find-links {lab.index}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[project]\ndependencies = ["alpha>1", "beta"]', ""),
        ('[project]\ndynamic = ["dependencies"]', "has dynamic dependencies"),
        ("[tool.poetry]\n", "has no [project] dependencies list"),
        ("[project\n", "is not valid TOML"),
    ],
)
def test_dependencies_of_a_project(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text(text)
    if message:
        with pytest.raises(UserError, match=re.escape(message)):
            requested.read(path)
    else:
        names = [line.requirement.name for line in requested.read(path).packages]
        assert names == ["alpha", "beta"]


def test_the_file_next_to_the_script(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"neither requirements.txt nor pyproject.toml"):
        requested.find("auto", tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["alpha"]\n')
    assert requested.find("auto", tmp_path).name == "pyproject.toml"
    (tmp_path / "requirements.txt").write_text("alpha\n")
    assert requested.find("auto", tmp_path).name == "requirements.txt"
    with pytest.raises(UserError, match="no such file: /nowhere"):
        requested.find("/nowhere", tmp_path)


@pytest.mark.parametrize(
    ("module", "text", "name"),
    [
        ("sklearn", "alpha", "scikit-learn"),
        ("cv2", "opencv-python==4.10", "opencv-python"),
        ("tensorflow_datasets", "Tensorflow.Datasets", "Tensorflow.Datasets"),
        ("some_module", "alpha", "some-module"),
    ],
)
def test_the_package_of_a_module(lab: Lab, module: str, text: str, name: str) -> None:
    assert package_of(module, lab.read(text)) == name


def test_uv_asks_the_index_that_is_set_for_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(
        "[global]\nindex-url = https://reader:s3cret@pypi.example.org/simple\n"
        "extra-index-url = https://more.example.org/simple\n[list]\nformat = columns\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    found = uv.of_pip()
    assert found["UV_DEFAULT_INDEX"] == "https://reader:s3cret@pypi.example.org/simple"
    assert "more.example.org" not in str(found)
