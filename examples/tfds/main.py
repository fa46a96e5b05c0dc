"""Trains on a prepared TensorFlow Datasets data set, of which each worker reads its own part."""

import argparse

import tensorflow as tf
import tensorflow_datasets as tfds

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data-dir", required=True, help="the prepared data, same path on all hosts")
parser.add_argument("--dataset", default="digits", help="name of the data set, such as mnist")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--per-worker-batch-size", type=int, default=50)
args = parser.parse_args()

strategy = tf.distribute.MultiWorkerMirroredStrategy()
builder = tfds.builder(args.dataset, data_dir=args.data_dir)


def dataset_fn(context):
    """Return the batches of one worker, from its equal share of the examples."""
    parts = tfds.even_splits("train", context.num_input_pipelines, drop_remainder=True)
    part = parts[context.input_pipeline_id]
    dataset = builder.as_dataset(split=part, as_supervised=True, shuffle_files=True)
    dataset = dataset.map(lambda image, label: (tf.cast(image, tf.float32) / 255, label))
    return dataset.cache().shuffle(1000).repeat().batch(args.per_worker_batch_size)


with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input(builder.info.features["image"].shape),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(builder.info.features["label"].num_classes),
        ]
    )
    model.compile(
        optimizer="adam",
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

examples = builder.info.splits["train"].num_examples
steps = examples // (args.per_worker_batch_size * strategy.num_replicas_in_sync)
dataset = strategy.distribute_datasets_from_function(dataset_fn)
model.fit(dataset, epochs=args.epochs, steps_per_epoch=steps, verbose=2)
