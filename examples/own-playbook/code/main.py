"""Fits a line on several workers, and saves the model for the playbook."""

import argparse
import os
from pathlib import Path

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()

strategy = tf.distribute.MultiWorkerMirroredStrategy()
x = np.random.default_rng(0).uniform(-1, 1, (640, 1)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, 3 * x + 1)).repeat().batch(64)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")

model.fit(dataset, epochs=args.epochs, steps_per_epoch=50, verbose=2)

folder = Path(os.environ.get("TRAIN_MODEL_DIR", "model"))
folder.mkdir(parents=True, exist_ok=True)
model.save(folder / "model.keras")
