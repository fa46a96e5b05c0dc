"""Whether a script is known to need TensorFlow before it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.gang.plan.script_imports import needs_tensorflow

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
    assert needs_tensorflow("main.py", {name: tmp_path / name for name in files}) == expected
