"""Fetches examples one by one, in parallel, in a graph; what cannot be read is named.

TensorFlow is imported by the functions that need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def fetch_each(
    load: Callable[[Any], tuple[Any, Any]],
    describe: Callable[[Any], Any],
    indices: Any,
    shape: Sequence[int],
    label: Any,
) -> tuple[Any, Any]:
    """Return the features [n, *shape] and labels [n, ...] of examples that are read from files.

    Nothing but graph operations: parameter servers run them in processes of their own.

    Args:
        load: gives the features, float32 of ``shape``, and the label of an index, int64.
        describe: gives the names, strings of [k], of the examples at the indices [k].
        indices: int64 of shape [n]; n may be 0.
        shape: of one example's features.
        label: the tf.TensorSpec of one label.

    Raises:
        tf.errors.InvalidArgumentError: when the graph runs: examples cannot be read, and which.
    """
    import tensorflow as tf

    count = tf.size(indices, out_type=tf.int64)
    elements = tf.data.Dataset.from_tensor_slices((tf.range(count), indices)).map(
        lambda place, index: (place, *load(index)), num_parallel_calls=tf.data.AUTOTUNE
    )
    # TensorFlow's own error would not name the file (the log holds the reason). With one element
    # at the end that is always there, a batch comes about even if none can be read.
    last = (tf.constant(-1, tf.int64), tf.zeros(shape), tf.zeros(label.shape, label.dtype))
    elements = elements.ignore_errors(log_warning=True).concatenate(
        tf.data.Dataset.from_tensors(last)
    )
    places, features, labels = (
        part[:-1] for part in elements.batch(count + 1).get_single_element()
    )
    lost = tf.tensor_scatter_nd_update(
        tf.fill([count], True), places[:, tf.newaxis], tf.fill(tf.shape(places), False)
    )
    names = describe(tf.boolean_mask(indices, lost)[:3])
    # Not tf.debugging.assert_equal, which leaves the names out.
    complete = tf.debugging.Assert(
        tf.equal(tf.size(names), 0), ["examples that cannot be read or decoded:", names]
    )
    with tf.control_dependencies([complete] if complete is not None else []):
        features, labels = tf.identity(features), tf.identity(labels)
    features.set_shape([indices.shape[0], *shape])
    labels.set_shape([indices.shape[0], *label.shape])
    return features, labels


def chosen_size(content: bytes, asked: int) -> tuple[int, int]:
    """Return the height and width that all images get, in pixels.

    Args:
        content: the first of them, encoded.
        asked: of --image-size; 0 for those of the first one.

    Raises:
        tf.errors.InvalidArgumentError: it cannot be decoded.
    """
    if asked:
        return asked, asked
    import tensorflow as tf

    with tf.device("CPU:0"):
        height, width, _ = tf.io.decode_image(content, expand_animations=False).shape
    return height, width


def decode_image(content: Any, size: Sequence[int]) -> Any:
    """Return the encoded image as float32 of [*size, 3] from 0 to 1.

    Its sides are scaled each by itself, so one of other proportions is distorted.

    Args:
        content: a string tensor.
        size: height and width in pixels.
    """
    import tensorflow as tf

    image = tf.io.decode_image(content, channels=3, expand_animations=False)
    image.set_shape([None, None, 3])
    image = tf.image.resize(tf.cast(image, tf.float32), size, antialias=True)
    return tf.clip_by_value(image * tf.constant(1 / 255, tf.float32), 0.0, 1.0)
