"""Examples that are read from files when they are fetched.

They are fetched by graph operations alone, because parameter servers run these in other processes
on the host that fetches. Errors name the files that cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(eq=False)
class FileSplit:
    """Examples that are read from files one by one, in parallel."""

    #: One value per example, or files; converted to tensors at the first fetch.
    columns: Sequence[Any]
    #: Maps columns and an int64 index to features, float32 of ``shape``, and a label.
    load: Callable[..., tuple[Any, Any]]
    #: Maps columns and indices [k] to names of examples, strings [k].
    describe: Callable[..., Any]
    size: int
    shape: tuple[int, ...]
    #: The tf.TensorSpec of a label.
    label: Any
    _tensors: Any = None

    def fetch(self, indices: Any) -> tuple[Any, Any]:
        """Return features and labels by number, see Split; the graph names damaged examples."""
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
        complete = tf.debugging.Assert(
            tf.equal(tf.size(names), 0), ["examples could not be read or decoded:", names]
        )
        with tf.control_dependencies([complete] if complete is not None else []):
            features, labels = tf.identity(features), tf.identity(labels)
        features.set_shape([indices.shape[0], *shape])
        labels.set_shape([indices.shape[0], *label.shape])
        return features, labels


def chosen_size(content: bytes, asked: int) -> tuple[int, int]:
    """Return the height and width in pixels of all images: ``asked``, or if 0 that of the first."""
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
