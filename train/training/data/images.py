"""Folders of images: FOLDER/train/CLASS/*.jpg and FOLDER/test/CLASS/*.jpg.

A class has the number of its folder's name in ``train``, sorted. Images are decoded in the graph
when they are fetched, on the host that fetches them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from . import fingerprints
from .arrays import PARTS
from .base import Data, DataError, naming
from .each import chosen_size, decode_image, fetch_each

SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp")


class ImageSplit:
    """Images in files.

    Args:
        paths: of the images, absolute.
        labels: their classes.
        shape: height and width that they get, in pixels, and 3.
    """

    def __init__(self, paths: list[Path], labels: list[int], shape: tuple[int, int, int]) -> None:
        self.size = len(paths)
        self._paths, self._labels, self._shape = paths, labels, shape
        self._tensors: Any = None

    def fetch(self, indices: Any) -> tuple[Any, Any]:
        """Return features and labels by number: see Split."""
        import tensorflow as tf

        if self._tensors is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._tensors = (
                    tf.constant([str(path) for path in self._paths]),
                    tf.constant(self._labels, tf.int64),
                )
        paths, labels = self._tensors

        def load(index: Any) -> tuple[Any, Any]:
            image = decode_image(tf.io.read_file(paths[index]), self._shape[:2])
            return image, labels[index]

        return fetch_each(
            load,
            lambda chosen: tf.gather(paths, chosen),
            indices,
            self._shape,
            tf.TensorSpec([], tf.int64),
        )


def open_images(folder: Path, image_size: int) -> Data:
    """Return the images below ``folder``.

    Args:
        folder: with the folders ``train`` and ``test``, each with a folder for each class.
        image_size: height and width that all images get, in pixels; 0: those of the first one.

    Raises:
        DataError: a folder is missing or empty, holds something else than images, or a class to
            test has no images to train on.
    """
    folder = folder.absolute()
    found: dict[str, list[tuple[Path, int, str]]] = {}
    for part in PARTS:
        with naming(folder / part):
            found[part] = [
                (path, size, kind.name)
                for kind in _visible(folder / part)
                for path, size in _images(kind)
            ]
        if not found[part]:
            raise DataError(
                f"images: {folder / part} holds no folders of images, one for each class"
            )
    classes = sorted({kind for _, _, kind in found["train"]})
    number = {kind: index for index, kind in enumerate(classes)}
    unknown = sorted({kind for _, _, kind in found["test"]} - set(classes))
    if unknown:
        raise DataError(f"images: {folder}/test has classes that train has not: {unknown}")
    first = found["train"][0][0]
    # What the damage raises belongs to TensorFlow.
    with naming(first, Exception):
        shape = (*chosen_size(first.read_bytes(), image_size), 3)
    train, test = (
        ImageSplit(
            [path for path, _, _ in found[part]],
            [number[kind] for _, _, kind in found[part]],
            shape,
        )
        for part in PARTS
    )
    files, sizes, _ = zip(*found["train"], *found["test"], strict=True)
    return Data(
        "images",
        train,
        test,
        shape,
        len(classes),
        fingerprints.of_files(folder, files, sizes),
    )


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder, sorted by name, but for hidden files such as .DS_Store."""
    with os.scandir(folder) as entries:
        return sorted(
            (entry for entry in entries if not entry.name.startswith(".")),
            key=lambda entry: entry.name,
        )


def _images(kind: os.DirEntry[str]) -> list[tuple[Path, int]]:
    """Return the images of a class and their sizes in bytes."""
    if not kind.is_dir():
        raise DataError(f"images: {kind.path} is no folder of a class: move it away")
    images = []
    for entry in _visible(Path(kind.path)):
        path = Path(entry.path)
        size = entry.stat().st_size
        if path.suffix.lower() not in SUFFIXES or not entry.is_file():
            raise DataError(f"images: {path} is none of {', '.join(SUFFIXES)}: move it away")
        if not size:
            raise DataError(f"images: {path} is empty")
        images.append((path, size))
    if not images:
        raise DataError(f"images: {kind.path} is empty")
    return images
