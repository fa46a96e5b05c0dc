"""The examples to learn from and to test on: where they come from, by name.

This module imports neither TensorFlow nor numpy: options are checked without them. Nothing is
fetched from the network unless it is asked for. Make the strategy first: to open the data may take
operations of TensorFlow.
"""

from __future__ import annotations

import re
from pathlib import Path

from .arrays import ArraySplit, as_read, from_arrays, scaled
from .base import Data, DataError, Split

__all__ = [
    "NAMES",
    "ArraySplit",
    "Data",
    "DataError",
    "Split",
    "as_read",
    "check_data",
    "from_arrays",
    "open_data",
    "scaled",
]

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
#: Those that are nowhere but in a folder of the user's, and those that can be fetched.
_FROM_FOLDER = ("mnist", "cifar10", "npz", "images", "tfrecord")
_FETCHED = ("mnist", "fashion-mnist", "cifar10")
_TFDS = re.compile(r"tfds:[A-Za-z0-9_./:*-]+")


def is_known(name: str) -> bool:
    """Tell whether there are data of a name, as far as can be told without a look."""
    return name in NAMES or _TFDS.fullmatch(name) is not None


def check_data(name: str, folder: Path | None, *, download: bool) -> None:
    """Raise DataError where the options cannot be right, without a look at any file.

    Args:
        name: one of NAMES, or ``tfds:NAME``.
        folder: as for ``open_data``.
        download: as for ``open_data``.
    """
    if not is_known(name):
        raise DataError(f"data {name!r} are not known; there are {', '.join(NAMES)}, tfds:NAME")
    prepared = name not in NAMES
    if folder is None and (download or prepared or name in _FROM_FOLDER):
        raise DataError(f"{name}: --data-dir must say where the files are")
    if download and not prepared and name not in _FETCHED:
        raise DataError(f"--download fetches {', '.join(_FETCHED)}, not {name}")


def open_data(
    name: str,
    folder: Path | None,
    *,
    download: bool,
    image_size: int,
    seed: int,
    examples: int,
) -> Data:
    """Return the data of a name.

    Args:
        name: one of NAMES, or ``tfds:NAME``.
        folder: where the files are; for ``npz`` and ``cifar10`` it may be the file itself.
            ``images`` and ``tfrecord`` are read in the graph: the folder must be at the same
            place on every host that feeds.
        download: whether files that are missing are to be fetched from where they are published.
        image_size: height and width in pixels that ``images`` and images of ``tfrecord`` get; 0:
            those of the first one.
        seed: of ``synthetic``.
        examples: how many to train on ``synthetic`` gives.

    Raises:
        DataError: something is missing or wrong; one line says what, where and how to get it.
    """
    check_data(name, folder, download=download)
    if name == "digits":
        from .digits import open_digits

        return open_digits()
    if name == "synthetic":
        from .synthetic import open_synthetic

        return open_synthetic(examples, seed)
    if name in ("mnist", "fashion-mnist"):
        from .idx import open_idx

        return open_idx(name, folder, fetch=download)
    assert folder is not None, "check_data has seen to it"
    if name == "cifar10":
        from .cifar import open_cifar10

        return open_cifar10(folder, fetch=download)
    if name not in NAMES:
        from .tfds import PREFIX, open_tfds

        return open_tfds(name.removeprefix(PREFIX), folder, fetch=download, image_size=image_size)
    if not folder.exists():
        raise DataError(f"{name}: there is no {folder.absolute()}, which --data-dir names")
    if name == "npz":
        from .arrays import open_npz

        return open_npz(folder)
    if name == "images":
        from .images import open_images

        return open_images(folder, image_size)
    from .tfrecords import open_tfrecords

    return open_tfrecords(folder, image_size)
