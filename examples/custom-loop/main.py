"""A custom training loop on several workers, with Keras 3, whose fit supports one worker only."""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--steps-per-epoch", type=int, default=100)
parser.add_argument("--batch-size", type=int, default=128, help="global batch size")
args = parser.parse_args()

strategy = tf.distribute.MultiWorkerMirroredStrategy()
tf.keras.utils.set_random_seed(0)


def make_dataset():
    """Return batches of points and their quadrants."""
    points = np.random.default_rng(0).uniform(-1, 1, (10_000, 2)).astype("float32")
    quadrants = 2 * (points[:, 0] > 0) + (points[:, 1] > 0)
    dataset = tf.data.Dataset.from_tensor_slices((points, quadrants.astype("int64")))
    return dataset.shuffle(10_000, seed=0).repeat().batch(args.batch_size)


dataset = strategy.experimental_distribute_dataset(make_dataset())

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((2,)),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(4),
        ]
    )
    optimizer = tf.keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)


def replica_step(points, quadrants):
    """Train one replica on its part of the batch; return its part of the loss and its hits."""
    with tf.GradientTape() as tape:
        logits = model(points, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(quadrants, logits)
        loss = tf.nn.compute_average_loss(losses, global_batch_size=args.batch_size)
    # apply_gradients sums the gradients over all replicas.
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    hits = tf.reduce_sum(tf.cast(tf.argmax(logits, axis=1) == quadrants, tf.float32))
    return loss, hits


@tf.function
def train_step(batch):
    """Train all replicas on one batch; return loss and accuracy of the whole batch."""
    loss, hits = strategy.run(replica_step, args=batch)
    total = tf.distribute.ReduceOp.SUM
    accuracy = strategy.reduce(total, hits, axis=None) / args.batch_size
    return strategy.reduce(total, loss, axis=None), accuracy


def report(**record):
    """Append a line to the launcher's progress file, if there is one."""
    if "TRAIN_PROGRESS_FILE" in os.environ:
        with Path(os.environ["TRAIN_PROGRESS_FILE"]).open("a") as stream:
            stream.write(json.dumps({"phase": "training", **record}) + "\n")


steps, shown = args.epochs * args.steps_per_epoch, 0.0
for step, batch in zip(range(1, steps + 1), dataset, strict=False):
    loss, accuracy = (float(value) for value in train_step(batch))
    if time.monotonic() - shown > 0.5 or step == steps:
        shown = time.monotonic()
        epoch = (step - 1) // args.steps_per_epoch + 1
        metrics = {"accuracy": accuracy}
        report(step=step, steps=steps, epoch=epoch, epochs=args.epochs, loss=loss, metrics=metrics)
    if step % args.steps_per_epoch == 0:
        print(f"step {step}: loss {loss:.4f}, accuracy {accuracy:.3f}", flush=True)

print("trained on synthetic data: loss and accuracy do not apply to real data", flush=True)
norm = sum(float(tf.norm(variable)) for variable in model.trainable_variables)
print(f"sum of the norms of the weights, the same in every worker: {norm:.6f}")
