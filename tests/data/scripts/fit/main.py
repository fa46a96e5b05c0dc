"""Trains a small network with fit on synthetic data, and prints each epoch's exact values."""

import argparse
import json
import time

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()

STEPS, BATCH = 8, 60


class Values(tf.keras.callbacks.Callback):
    """Makes steps of 70 ms, so that Keras draws its bar after each, and prints an epoch's values."""

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.07)

    def on_epoch_end(self, epoch, logs=None):
        values = {name: float(value) for name, value in logs.items()}
        print(f"\nVALUES {json.dumps([epoch + 1, values])}", flush=True)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
tf.keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(STEPS * BATCH, 8)).astype("float32")
y = (x[:, 0] > 0).astype("int64")
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
dataset = dataset.with_options(options)
with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.Input((8,)), tf.keras.layers.Dense(1, activation="sigmoid")]
    )
    metrics = ["accuracy", tf.keras.metrics.AUC(name="auc"), tf.keras.metrics.Recall(name="recall")]
    model.compile(tf.keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=metrics)
model.fit(
    dataset, epochs=args.epochs, validation_data=dataset.take(2), callbacks=[Values()], verbose=1
)
