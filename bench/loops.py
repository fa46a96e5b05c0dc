"""Hand-written loops that train like worker.py; bench runs one process for each rank.

    TF_CONFIG=... python bench/loops.py bare|data|fit DATA FOLDER MODEL BATCH STEPS

``bare`` is the fastest loop that we could write: many steps per call, no metrics, checkpoints or
reports, and batches in the order of the examples in memory. ``data`` is the same with examples that
tf.data shuffles and batches. ``fit`` is Keras' own loop, with the same number of steps per
execution. Each loop prints the steps per second over the last two thirds.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))

import tensorflow as tf
from training import models
from training.data.arrays import scaled
from training.settings import Settings
from training.task import open_data

#: Number of steps in a call into TensorFlow.
CALL = 50


def examples(found: Any, batch: int, context: Any) -> Any:
    """Return an endless dataset of this worker's (features, labels), shuffled."""
    features, labels = found.train.fetch(tf.range(found.train.size, dtype=tf.int64))
    made = tf.data.Dataset.from_tensor_slices((scaled(features), labels))
    made = made.shuffle(found.train.size, seed=context.input_pipeline_id).repeat()
    share = batch // context.num_input_pipelines
    return made.batch(share, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def main(way: str, name: str, folder: str, network: str, batch: int, steps: int) -> float:
    """Train and return the steps per second."""
    experimental = tf.distribute.experimental
    ring = experimental.CommunicationOptions(
        implementation=experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)
    found = open_data(Settings(data=name, data_dir=Path(folder)))
    dataset = strategy.distribute_datasets_from_function(
        lambda context: examples(found, batch, context)
    )
    with strategy.scope():
        model = models.build(network, found.shape, found.classes, 0)
        optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
        losses = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        if way == "fit":
            model.compile(optimizer, losses, steps_per_execution=CALL)
    if way == "fit":
        times: list[float] = []
        every = tf.keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda *_: times.append(time.monotonic())
        )
        every._supports_tf_logs = True
        model.fit(dataset, steps_per_epoch=steps, epochs=1, verbose=0, callbacks=[every])
        first = len(times) // 3
        return (len(times) - 1 - first) * CALL / (times[-1] - times[first])

    share = batch // strategy.num_replicas_in_sync

    def cut(number: Any) -> None:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        first = (number * batch + replica * share) % (found.train.size - share)
        images, labels = found.train.fetch(tf.cast(first + tf.range(share), tf.int64))
        step(scaled(images), labels)

    def step(images: Any, labels: Any) -> None:
        images = tf.ensure_shape(images, [share, *found.shape])
        labels = tf.ensure_shape(labels, [share])
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            costs = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_sum(costs) / batch
        gradients = tape.gradient(loss, model.trainable_variables)
        # In sequence: with one thread each, the replicas then wait less for each other.
        with tf.control_dependencies(gradients):
            gradients = [tf.identity(gradient) for gradient in gradients]
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True), skip_gradients_aggregation=True
        )

    @tf.function  # type: ignore[untyped-decorator]
    def call(iterator: Any, number: Any) -> None:
        for of in tf.range(CALL):
            if way == "bare":
                strategy.run(cut, args=(number * CALL + of,))
            else:
                strategy.run(step, args=next(iterator))

    iterator = iter(dataset)
    third = steps // CALL // 3
    for number in range(steps // CALL):
        if number == third:
            began = time.monotonic()
        call(iterator, tf.constant(number))
    return (steps // CALL - third) * CALL / (time.monotonic() - began)


if __name__ == "__main__":
    way, name, folder, network, batch, steps = sys.argv[1:]
    print(main(way, name, folder, network, int(batch), int(steps)), flush=True)
    os._exit(0)
