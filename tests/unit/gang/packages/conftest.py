"""A folder of wheels, and requirements that are locked with these wheels."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import wheels
from train.gang.packages import locks, requested

#: The lock of TensorFlow's environment in these tests.
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
JAX_BASE = """\
jax==0.10.2 \\
    --hash=sha256:00
keras==3.15.1 \\
    --hash=sha256:01
numpy==2.0.1 \\
    --hash=sha256:02
"""
#: Without a framework.
BARE = "# no packages\n"
WHEELS = {
    "numpy-2.0.1-py3-none-any": "",
    "numpy-2.2.0-py3-none-any": "",
    "alpha-1.0-py3-none-any": "Requires-Dist: numpy",
    "alpha-2.0-py3-none-any": "Requires-Dist: numpy>=2",
    "old-1.0-py3-none-any": "Requires-Dist: numpy<2",
    "compiled-1.0-cp311-cp311-manylinux_2_17_x86_64": "",
    "extended-1.0-py3-none-any": "Provides-Extra: more\nRequires-Dist: alpha; extra == 'more'",
    "trains-1.0-py3-none-any": "Requires-Dist: tensorflow>=2",
    "tensorflow-2.21.0-py3-none-any": "",
    "tensorflow_cpu-2.21.0-py3-none-any": "",
    "jax-0.10.2-py3-none-any": (
        "Provides-Extra: cuda12\nRequires-Dist: cudas; extra == 'cuda12'\n"
        "Provides-Extra: k8s\nRequires-Dist: alpha; extra == 'k8s'"
    ),
    "cudas-1.0-py3-none-any": "",
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    for name, metadata in WHEELS.items():
        wheels.write(folder, name, metadata)
    return folder


class Lab:
    """A script's requirements in a folder, with packages from a folder of wheels."""

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
