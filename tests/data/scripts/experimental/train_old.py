"""A script for TensorFlow 2.1, which creates the experimental strategy at its beginning."""

import tensorflow as tf

strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()

from model_def import build, data  # noqa: E402

BATCH = 32 * strategy.num_replicas_in_sync

with strategy.scope():
    model = build()
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])

model.fit(data(BATCH), epochs=2, steps_per_epoch=25, verbose=2)
