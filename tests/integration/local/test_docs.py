"""The examples of the documentation do what it says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.lab import REPOSITORY
from tests.support.training_ranks import PATIENCE, WORKER, clean_environment

TRAINING = REPOSITORY / "docs/training.md"


FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page that are marked with ``language``."""
    return [text for marked, text in FENCE.findall(page.read_text()) if marked == language]


@pytest.mark.tensorflow
def test_the_example_of_an_own_network_trains(tf_python: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(blocks(TRAINING, "python")[0])
    options = ["--data=mine.py", "--model=mine.py", "--batch-size=100", "--epochs=1"]
    done = subprocess.run(
        [tf_python, str(WORKER), *options],
        cwd=tmp_path,
        env=clean_environment(TF_CPP_MIN_LOG_LEVEL="2"),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = re.search(r"epoch 1/1: loss [0-9.]+, test_loss ([0-9.]+), test_accuracy", done.stdout)
    # log 2 is what a coin would reach.
    assert told is not None, done.stdout
    assert float(told[1]) < 0.69, done.stdout
    assert (tmp_path / "model/model.keras").is_file()
    assert [path.name for path in tmp_path.glob("checkpoints/*")] == ["ckpt-20.npz"]
