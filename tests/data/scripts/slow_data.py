"""Examples for train/worker.py that are read slowly while the file SLOW_WHILE exists."""

import os
import time

import numpy as np
import tensorflow as tf


class Slow:
    classes = 10

    def __init__(self, size):
        self.size = size

    def fetch(self, places):
        def draw(numbers):
            if os.path.exists(os.environ["SLOW_WHILE"]):
                time.sleep(0.5)
            return np.sin(np.outer(numbers + 1, np.arange(1, 17))).astype(np.float32)

        features = tf.numpy_function(draw, [places], tf.float32)
        return tf.ensure_shape(features, [None, 16]), places % 10


def build_dataset():
    return Slow(1200), Slow(120)
