"""The data and the network of TensorFlow's tutorial."""

from pathlib import Path

import numpy as np
import tensorflow as tf

MNIST = Path("~/.keras/datasets/mnist.npz").expanduser()


def mnist_data():
    """Return MNIST's images and labels, or generated ones if Keras has no MNIST on this host."""
    if MNIST.exists():
        (x_train, y_train), _ = tf.keras.datasets.mnist.load_data()
        return x_train / np.float32(255), y_train.astype(np.int64)
    print("no ~/.keras/datasets/mnist.npz: training on synthetic images of the same shape")
    rng = np.random.default_rng(0)
    y_train = rng.integers(0, 10, size=6_000)
    x_train = rng.random((6_000, 28, 28), dtype=np.float32) * 0.5
    x_train[np.arange(6_000), y_train * 2] += 0.5  # a bright line, whose height is the class
    return x_train, y_train


def mnist_dataset(batch_size):
    """Return an endless dataset of batches."""
    x_train, y_train = mnist_data()
    return (
        tf.data.Dataset.from_tensor_slices((x_train, y_train))
        # With a seed: each worker reads all examples and keeps its part of every batch, so the
        # order, which changes with each epoch, must be the same in all of them.
        .shuffle(len(x_train), seed=0)
        .repeat()
        .batch(batch_size)
    )


def build_and_compile_cnn_model():
    """Return a small convolutional network."""
    model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(input_shape=(28, 28)),
            tf.keras.layers.Reshape(target_shape=(28, 28, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.01),
        metrics=["accuracy"],
    )
    return model
