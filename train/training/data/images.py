"""Examples in folders of images, one folder for each class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from . import Data, DataError, file_fingerprint, naming
from .arrays import PARTS
from .files import FileSplit, chosen_size, decode_image

SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp")


def open_images(folder: Path, image_size: int) -> Data:
    """Return the images FOLDER/train/CLASS/*.jpg and FOLDER/test/CLASS/*.jpg.

    Other SUFFIXES are possible. The number of a class is the index of its folder among the sorted
    folders of ``train``. For ``image_size`` see ``chosen_size``.
    """
    folder = folder.absolute()
    found: dict[str, list[tuple[Path, int, str]]] = {}
    for part in PARTS:
        with naming(folder / part):
            found[part] = [image for kind in _visible(folder / part) for image in _images(kind)]
        if not found[part]:
            wanted = "folders of images, one per class"
            raise DataError(f"images: {folder / part} contains no {wanted}")
    classes = sorted({kind for _, _, kind in found["train"]})
    unknown = sorted({kind for _, _, kind in found["test"]} - set(classes))
    if unknown:
        raise DataError(f"images: {folder}/test has classes that are not in train: {unknown}")
    first = found["train"][0][0]
    # For damaged images, TensorFlow raises its own errors.
    with naming(first, Exception):
        shape = (*chosen_size(first.read_bytes(), image_size), 3)

    def load(paths: Any, labels: Any, index: Any) -> tuple[Any, Any]:
        return decode_image(tf.io.read_file(paths[index]), shape[:2]), labels[index]

    def describe(paths: Any, labels: Any, chosen: Any) -> Any:
        return tf.gather(paths, chosen)

    def split(part: str) -> FileSplit:
        paths = [str(path) for path, _, _ in found[part]]
        labels = np.searchsorted(classes, [kind for _, _, kind in found[part]])
        label = tf.TensorSpec([], tf.int64)
        return FileSplit([paths, labels], load, describe, len(paths), shape, label)

    files, sizes, _ = zip(*found["train"], *found["test"], strict=True)
    fingerprint = file_fingerprint(folder, files, sizes)
    return Data("images", split("train"), split("test"), shape, len(classes), fingerprint)


def _visible(folder: Path) -> list[Path]:
    """Return the sorted entries of a folder, except hidden files such as .DS_Store."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _images(kind: Path) -> list[tuple[Path, int, str]]:
    """Return the images in the folder of a class: path, size in bytes and class name of each."""
    if not kind.is_dir():
        raise DataError(
            f"images: {kind} is not a folder with the images of a class: move this file to "
            "another folder"
        )
    images = []
    for path in _visible(kind):
        if path.suffix.lower() not in SUFFIXES or not path.is_file():
            raise DataError(
                f"images: {path} is not an image file ({', '.join(SUFFIXES)}): move it to "
                "another folder"
            )
        size = path.stat().st_size
        if not size:
            raise DataError(f"images: {path} is empty: replace or remove this file")
        images.append((path, size, kind.name))
    if not images:
        raise DataError(f"images: {kind} is empty: add images, or remove this folder")
    return images
