"""Loads CIFAR-10 from its published files with the usual augmentation, or synthetic images."""

import pickle
from pathlib import Path

import numpy as np
import tensorflow as tf

MEAN, STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)


def load(data_dir):
    """Return images (uint8, [n, 32, 32, 3]) and labels [n] for training, and for testing."""
    if not data_dir:
        print("no --data-dir: training on synthetic images of the same shape")
        return synthetic(6_400), synthetic(1_280)
    folder = Path(data_dir).expanduser()
    batches = []
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        with (folder / "cifar-10-batches-py" / name).open("rb") as stream:
            batch = pickle.load(stream, encoding="bytes")
        images = batch[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        batches.append((images, np.array(batch[b"labels"])))
    images, labels = map(np.concatenate, zip(*batches[:5], strict=True))
    return (images, labels), batches[5]


def synthetic(count):
    """Return generated images, whose class is their brightness, and their labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, count)
    noise = rng.integers(0, 64, (count, 32, 32, 3))
    return (noise + 19 * labels[:, None, None, None]).astype(np.uint8), labels


def augment(image, label):
    """Shift an image by up to four pixels, and flip half of the images."""
    image = tf.image.resize_with_crop_or_pad(image, 40, 40)
    image = tf.image.random_crop(image, [32, 32, 3])
    return tf.image.random_flip_left_right(image), label


def normalize(image, label):
    """Normalize an image to mean 0 and deviation 1 of each color over the training set."""
    return (tf.cast(image, tf.float32) - MEAN) / STD, label


def datasets(data_dir, batch_size):
    """Return endless training batches, their number per epoch, and the test batches."""
    (images, labels), test = load(data_dir)
    train = tf.data.Dataset.from_tensor_slices((images, labels))
    # With a seed: each worker reads all examples and keeps its part of every batch, so the order,
    # which changes with each epoch, must be the same in all of them.
    train = train.shuffle(len(images), seed=0).repeat()
    train = train.map(augment, tf.data.AUTOTUNE).map(normalize, tf.data.AUTOTUNE)
    test = tf.data.Dataset.from_tensor_slices(test).map(normalize, tf.data.AUTOTUNE)
    train, test = (
        dataset.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
        for dataset in (train, test)
    )
    return train, len(images) // batch_size, test
