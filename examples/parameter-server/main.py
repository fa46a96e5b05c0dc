"""Training with parameter servers, as in TensorFlow's tutorial: the chief schedules the steps."""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--steps-per-epoch", type=int, default=100)
parser.add_argument("--batch-size", type=int, default=64, help="per step, on one worker")
args = parser.parse_args()

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
    )
    print(f"{resolver.task_type} {resolver.task_id} serves the chief", flush=True)
    server.join()  # never returns: the launcher stops it after the chief has completed

strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)


def dataset_fn(_context):
    """Return endless batches of one worker: points, and the sum of their coordinates."""
    points = np.random.default_rng().uniform(-1, 1, (10_000, 4)).astype("float32")
    sums = points.sum(axis=1, keepdims=True)
    dataset = tf.data.Dataset.from_tensor_slices((points, sums))
    return dataset.shuffle(10_000).repeat().batch(args.batch_size)


@tf.function
def per_worker_dataset_fn():
    """Return the dataset of one worker."""
    return strategy.distribute_datasets_from_function(dataset_fn)


per_worker_iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset_fn))

with strategy.scope():  # variables are stored on the parameter servers
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.05)
    loss = tf.keras.metrics.Mean()


@tf.function
def train_step(iterator):
    """Train on one batch, on any free worker."""

    def replica_step(points, sums):
        with tf.GradientTape() as tape:
            squares = tf.square(model(points, training=True) - sums)
            value = tf.nn.compute_average_loss(squares[:, 0], global_batch_size=args.batch_size)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        loss.update_state(value)

    strategy.run(replica_step, args=next(iterator))


def report(**record):
    """Append a line to the launcher's progress file, if there is one."""
    if "TRAIN_PROGRESS_FILE" in os.environ:
        with Path(os.environ["TRAIN_PROGRESS_FILE"]).open("a") as stream:
            stream.write(json.dumps({"phase": "training", **record}) + "\n")


for epoch in range(1, args.epochs + 1):
    for _ in range(args.steps_per_epoch):
        coordinator.schedule(train_step, args=(per_worker_iterator,))
    coordinator.join()  # until all steps of the epoch are done
    value = float(loss.result())
    loss.reset_state()
    print(f"epoch {epoch}: loss {value:.6f}", flush=True)
    steps = args.steps_per_epoch
    report(
        step=epoch * steps, steps=args.epochs * steps, epoch=epoch, epochs=args.epochs, loss=value
    )
print("trained on synthetic data: the loss does not apply to real data", flush=True)
