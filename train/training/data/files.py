"""Examples that are read from files when they are fetched.

They are fetched by graph operations alone, because with parameter servers, graphs run in the
processes of the workers. Errors name the files that cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

_NOT_READ = "examples could not be read or decoded:"


@dataclass(eq=False)
class FileSplit:
    """Examples that are read from files one by one, in parallel."""

    #: The first arguments of ``load`` and ``describe``: for example, the paths and labels of all
    #: examples. They are converted to tensors at the first ``fetch``.
    columns: Sequence[Any]
    #: Maps the columns and an int64 index to features, float32 of ``shape``, and a label.
    load: Callable[..., tuple[Any, Any]]
    #: Maps the columns and indices [k] to names of examples, strings [k], for errors.
    describe: Callable[..., Any]
    size: int
    shape: tuple[int, ...]
    #: The tf.TensorSpec of a label.
    label: Any
    _tensors: Any = None

    def fetch(self, indices: Any) -> tuple[Any, Any]:
        """Return the features and labels of the examples at ``indices``; see Split.

        If examples cannot be read, the graph raises an error that names up to three of them.
        """
        if self._tensors is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._tensors = [tf.constant(column) for column in self.columns]
        columns, shape, label = self._tensors, self.shape, self.label
        count = tf.size(indices, out_type=tf.int64)
        elements = tf.data.Dataset.from_tensor_slices((tf.range(count), indices)).map(
            lambda place, index: (place, *self.load(*columns, index)),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        # TensorFlow's error would not name the file (the log has the reason). An extra element at
        # the end is always readable, so that there is a batch even if nothing else is.
        last = (tf.constant(-1, tf.int64), tf.zeros(shape), tf.zeros(label.shape, label.dtype))
        elements = elements.ignore_errors(log_warning=True)
        elements = elements.concatenate(tf.data.Dataset.from_tensors(last))
        batch = elements.batch(count + 1).get_single_element()
        places, features, labels = (part[:-1] for part in batch)
        read = tf.scatter_nd(places[:, tf.newaxis], tf.ones_like(places), [count])
        names = self.describe(*columns, tf.boolean_mask(indices, read == 0)[:3])
        # Not tf.debugging.assert_equal, which would omit the names.
        complete = tf.debugging.Assert(tf.equal(tf.size(names), 0), [_NOT_READ, names])
        with tf.control_dependencies([complete] if complete is not None else []):
            features, labels = tf.identity(features), tf.identity(labels)
        features.set_shape([indices.shape[0], *shape])
        labels.set_shape([indices.shape[0], *label.shape])
        return features, labels


def unreadable(message: str) -> str:
    """Return the names of examples in the error of a graph that could not read them, or ''."""
    found = re.search(rf"\[{_NOT_READ}\] \[(.*)\]$", message, re.MULTILINE)
    return found[1] if found else ""


def chosen_size(content: bytes, asked: int) -> tuple[int, int]:
    """Return the height and width in pixels to which all images are scaled.

    Both are ``asked``. If that is 0, they are those of the first image, whose file has ``content``.
    """
    if asked:
        return asked, asked
    with tf.device("CPU:0"):
        height, width, _ = tf.io.decode_image(content, expand_animations=False).shape
    return height, width


def decode_image(content: Any, size: Sequence[int]) -> Any:
    """Decode an image to float32 [*size, 3] from 0 to 1; its proportions may change."""
    image = tf.io.decode_image(content, channels=3, expand_animations=False)
    image.set_shape([None, None, 3])
    image = tf.image.resize(tf.cast(image, tf.float32), size, antialias=True)
    return tf.clip_by_value(image * tf.constant(1 / 255, tf.float32), 0.0, 1.0)
