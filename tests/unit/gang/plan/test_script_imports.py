"""The packages that a script is known to import before it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.gang.plan.script_imports import needs, packages

USES = "import tensorflow as tf\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"main.py": USES}, True),
        ({"main.py": "import numpy\nfrom tensorflow import keras\n"}, True),
        ({"main.py": "import tensorflow.keras.layers\n"}, True),
        ({"main.py": "import model\n", "model.py": USES}, True),
        ({"main.py": "from pkg import model\n", "pkg/__init__.py": "", "pkg/model.py": USES}, True),
        ({"main.py": "import pkg.a\n", "pkg/__init__.py": USES, "pkg/a.py": ""}, True),
        (
            {
                "main.py": "import pkg.a\n",
                "pkg/__init__.py": "",
                "pkg/a.py": "from . import b\n",
                "pkg/b.py": "from .c import x\n",
                "pkg/c.py": USES,
            },
            True,
        ),
        ({"main.py": "import a\n", "a.py": "import main\n"}, False),
        ({"main.py": "print(1)\n", "other.py": USES}, False),
        ({"main.py": f"try:\n    {USES}except ImportError:\n    pass\n"}, False),
        ({"main.py": f"def train():\n    {USES}"}, False),
        ({"main.py": "import tensorflow_hub, mytensorflow\n"}, False),
        # A file of that name hides the package.
        ({"main.py": USES, "tensorflow.py": ""}, False),
        ({"main.py": "this is no Python\n"}, False),
    ],
)
def test_what_a_script_imports(files: dict[str, str], expected: bool, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {name: tmp_path / name for name in files}
    assert needs("tensorflow", "main.py", found) == expected


SCRIPT = """\
import os, json
import numpy as np, pandas.io
from sklearn.linear_model import LinearRegression
from helpers import load
from package import deep
import package.direct
import included, data
from . import ignored
with open("x") as f:
    import inside_with
try:
    import maybe
except ImportError:
    maybe = None
if os.environ.get("X"):
    import sometimes
def main():
    import later
if __name__ == "__main__":
    import at_the_end
"""


def test_packages_that_a_script_needs_whatever_happens(tmp_path: Path) -> None:
    texts = {
        "main.py": SCRIPT,
        "helpers.py": "import requests\nimport main\n",
        "unused.py": "import unused_module\n",
        "package/__init__.py": "import of_package\n",
        "package/deep.py": "import of_deep\n",
        "package/direct.py": "import of_direct\n",
        "included.py": "",
        "data/without_code.csv": "",
    }
    files = {name: tmp_path / name for name in texts}
    for name, text in texts.items():
        files[name].parent.mkdir(exist_ok=True)
        files[name].write_text(text)
    assert packages("main.py", files) == [
        *("at_the_end", "inside_with", "numpy", "of_deep", "of_direct", "of_package"),
        *("pandas", "requests", "sklearn"),
    ]


@pytest.mark.parametrize("text", ["import (\n", "\0", "print 'Python 2'\n", "(" * 10_000])
def test_a_script_that_is_no_python_needs_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "main.py"
    path.write_text(text)
    assert packages("main.py", {"main.py": path}) == []
