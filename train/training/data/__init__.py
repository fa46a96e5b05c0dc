"""The examples to learn from and to test on: where they come from, by name.

This module imports neither TensorFlow nor numpy: options are checked without them. Nothing is
fetched from the network unless it is asked for. Make the strategy first: to open the data may take
operations of TensorFlow.
"""

from __future__ import annotations

import re
from pathlib import Path

from .base import Data, DataError, Split

__all__ = ["FETCHED", "NAMES", "Data", "DataError", "Split", "is_known", "open_data"]

#: A line for each name.
NAMES = {
    "digits": "scikit-learn's handwritten digits, 8 x 8 x 1, 10 classes; needs no files",
    "mnist": "handwritten digits, 28 x 28 x 1, 10 classes; four IDX files",
    "fashion-mnist": "clothes, 28 x 28 x 1, 10 classes; four IDX files, also from Debian's package",
    "cifar10": "small photographs, 32 x 32 x 3, 10 classes; the binary version",
    "npz": "a numpy archive of x_train, y_train, x_test and y_test",
    "images": "train/CLASS/*.png and test/CLASS/*.png, also JPEG, GIF, BMP",
    "tfrecord": "train*.tfrecord and test*.tfrecord of Examples with image or x, and label",
    "synthetic": "made-up images, 32 x 32 x 3, 10 classes; needs no files",
}
#: Those of NAMES that can be fetched.
FETCHED = ("mnist", "fashion-mnist", "cifar10")
_TFDS = re.compile(r"tfds:[A-Za-z0-9_./:*-]+")


def is_known(name: str) -> bool:
    """Return whether there are data of a name, as far as can be known without opening them."""
    return name in NAMES or _TFDS.fullmatch(name) is not None


def open_data(
    name: str,
    folder: Path,
    *,
    download: bool,
    image_size: int,
    seed: int,
    examples: int,
) -> Data:
    """Return the data of a name that ``is_known``.

    Args:
        folder: where the files are, for all but ``digits`` and ``synthetic``; for ``npz`` and
            ``cifar10`` it may be the file itself. ``images`` and ``tfrecord`` are read in the
            graph: the folder must be at the same place on every host that feeds.
        download: whether files that are missing are to be fetched from where they are published.
        image_size: height and width in pixels that images in files get; 0: those of the first one.
        seed: of ``synthetic``.
        examples: how many to train on ``synthetic`` gives.
    """
    from . import arrays, files, published, synthetic

    if name == "digits":
        return published.open_digits()
    if name == "synthetic":
        return synthetic.open_synthetic(examples, seed)
    if name in ("mnist", "fashion-mnist"):
        return published.open_idx(name, folder, download=download)
    if name == "cifar10":
        return published.open_cifar10(folder, download=download)
    if name not in NAMES:
        name = name.removeprefix(files.TFDS)
        return files.open_tfds(name, folder, download=download, image_size=image_size)
    if not folder.exists():
        raise DataError(f"{name}: there is no {folder.absolute()}, which --data-dir names")
    if name == "npz":
        return arrays.open_npz(folder)
    if name == "images":
        return files.open_images(folder, image_size)
    return files.open_tfrecords(folder, image_size)
