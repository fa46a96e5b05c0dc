"""scikit-learn's handwritten digits: 1797 images of 8 x 8 pixels, nothing to download."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from .arrays import from_arrays
from .base import Data, DataError, naming

TEST_EVERY = 5
CLASSES = 10


def open_digits() -> Data:
    """Return 1437 examples to train on and 360 to test on: every fifth one, whatever the seed.

    Reads the file behind ``sklearn.datasets.load_digits`` itself: importing scikit-learn would
    delay the first step by half a second.

    Raises:
        DataError: scikit-learn is not installed.
    """
    import numpy as np

    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise DataError(
            "digits: they come with scikit-learn, which is not installed; playbooks/setup.yml "
            "installs it"
        )
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    with naming(path, ValueError):
        table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    images = (table[:, :-1] / 16).reshape(-1, 8, 8, 1)
    labels = table[:, -1].astype(np.int64)
    test = np.arange(len(table)) % TEST_EVERY == 0
    return from_arrays(
        "digits", (images[~test], labels[~test]), (images[test], labels[test]), classes=CLASSES
    )
