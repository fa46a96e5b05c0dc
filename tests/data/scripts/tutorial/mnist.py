"""The tutorial's module, with images made on the spot: nothing is downloaded."""

import numpy as np
import tensorflow as tf


def mnist_dataset(batch_size):
    rng = np.random.default_rng(0)
    y_train = rng.integers(0, 10, size=6_000)
    x_train = rng.random((6_000, 28, 28), dtype=np.float32) * 0.5
    x_train[np.arange(6_000), y_train * 2] += 0.5
    return (
        tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(6_000).repeat().batch(batch_size)
    )


def build_and_compile_cnn_model():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(input_shape=(28, 28)),
            tf.keras.layers.Reshape(target_shape=(28, 28, 1)),
            tf.keras.layers.Conv2D(8, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.01),
        metrics=["accuracy"],
    )
    return model
