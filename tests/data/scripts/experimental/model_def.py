"""A module next to the script."""

import tensorflow as tf


def build():
    return tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])


def data(batch):
    x = tf.random.stateless_normal((256, 4), seed=(1, 2))
    y = tf.reduce_sum(x, axis=1, keepdims=True)
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(batch)
