"""The training program's data: their names, and those that need no files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.training_sources import TRAIN, error_of, run_python, write_mnist

# ---------------------------------------------------------------------------------- names

WITHOUT = """
import sys
for name in ("tensorflow", "numpy"):
    sys.modules[name] = None  # importing it fails
from pathlib import Path
from training import data
name, folder, download = sys.argv[1:]
try:
    data.check_data(name, Path(folder) if folder else None, download=download == "yes")
except data.DataError as error:
    print(error)
"""


def check_data(name: str, folder: str, download: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, name, folder, download],
        cwd=TRAIN,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("name", "folder", "download", "error"),
    [
        ("digits", "", "no", ""),
        ("synthetic", "", "no", ""),
        ("fashion-mnist", "", "no", ""),
        ("mnist", "somewhere", "yes", ""),
        ("mnits", "", "no", "'mnits' are not known; there are digits, mnist"),
        ("images", "", "no", "images: --data-dir must say where"),
        ("fashion-mnist", "", "yes", "--data-dir must say where"),
        ("npz", "x", "yes", "--download fetches mnist, fashion-mnist, cifar10, not npz"),
    ],
)
def test_names_are_checked_without_tensorflow_and_numpy(
    name: str, folder: str, download: str, error: str
) -> None:
    said = check_data(name, folder, download)
    assert error in said
    assert bool(error) == bool(said)


# ---------------------------------------------------------------------------------- no files


@pytest.mark.tensorflow
def test_digits_keep_every_fifth_for_the_test(tf_python: str) -> None:
    code = """
from sklearn.datasets import load_digits
found, own = open_one("digits"), load_digits()
train, test = fetched(found.train, range(1437)), fetched(found.test, range(360))
print(json.dumps({
    **describe(found),
    "types": train["types"],
    "labels": test["labels"] == own.target[::5].tolist(),
    "images": test["features"] == (own.images[::5] / 16).reshape(-1, 8, 8, 1).tolist(),
    "rest": train["labels"] == [int(t) for i, t in enumerate(own.target) if i % 5],
}))
"""
    found = run_python(tf_python, code)
    assert found["sizes"] == [1437, 360]
    assert (found["shape"], found["classes"]) == ([8, 8, 1], 10)
    assert found["types"] == ["float32", "int64"]
    assert found["labels"]
    assert found["images"]
    assert found["rest"]


@pytest.mark.tensorflow
def test_synthetic_images_follow_from_seed_and_number_and_can_be_learned(tf_python: str) -> None:
    code = """
import hashlib
import numpy as np
found, again, other = (open_one("synthetic", seed=seed, examples=2000) for seed in (3, 3, 4))
def get(split, indices):
    got = fetched(split, indices)
    return np.array(got["features"], np.float32), np.array(got["labels"])
x, y = get(found.train, range(2000))
few, _ = get(again.train, [1999, 7])
tests, answers = get(found.test, range(400))
means = np.stack([x[y == kind].mean(axis=0) for kind in range(10)])
guess = ((tests[:, None] - means) ** 2).sum(axis=(2, 3, 4)).argmin(axis=1)
print(json.dumps({
    **describe(found),
    "range": [float(x.min()), float(x.max())],
    "counts": np.bincount(y, minlength=10).tolist(),
    "same": bool((few == x[[1999, 7]]).all()),
    "again": again.fingerprint == found.fingerprint,
    "other": other.fingerprint != found.fingerprint,
    "different": float((get(other.train, [7])[0] == few[1]).mean()),
    "seen": max(float((image == x).all(axis=(1, 2, 3)).any()) for image in tests[:20]),
    "accuracy": float((guess == answers).mean()),
    "hash": hashlib.sha256((x[:50] * 255).round().astype(np.uint8).tobytes()).hexdigest(),
}))
"""
    found = run_python(tf_python, code)
    assert found["sizes"] == [2000, 400]
    assert (found["shape"], found["classes"]) == ([32, 32, 3], 10)
    low, high = found["range"]
    assert 0 <= low < 0.05
    assert 0.95 < high <= 1
    assert min(found["counts"]) > 150
    assert found["same"]
    assert found["again"]
    assert found["other"]
    assert found["different"] < 0.1
    assert found["seen"] == 0
    assert found["accuracy"] > 0.99
    # The same on every machine and with every version, or VERSION must change.
    assert found["hash"] == "c8eca02485af2dc26398f99a280a79186e4360ea1ace4f34f548483c5d492157"


@pytest.mark.tensorflow
def test_opening_data_runs_no_tensorflow_operation(tf_python: str, tmp_path: Path) -> None:
    write_mnist(tmp_path)
    code = f"""
import tensorflow as tf
for name in ("digits", "synthetic", "mnist"):
    open_one(name, {str(tmp_path)!r})
# Refused as soon as there has been an operation.
tf.config.threading.set_inter_op_parallelism_threads(1)
print(json.dumps("fine"))
"""
    assert run_python(tf_python, code) == "fine"


@pytest.mark.tensorflow
def test_folder_that_is_no_folder_is_an_error(tf_python: str) -> None:
    error = error_of(tf_python, name="npz", folder="/nowhere/at all")
    assert error == "npz: there is no /nowhere/at all, which --data-dir names"
