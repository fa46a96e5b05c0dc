"""Trains on one host in one process: on one GPU, on selected GPUs, or on all."""

import argparse

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--gpus", help="indices of the GPUs, such as 0,1 (default: all)")
parser.add_argument("--batch-size", type=int, default=128, help="global batch size of all GPUs")
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()

kind = "GPU"
if not tf.config.list_physical_devices("GPU"):
    kind = "CPU"
    print("no GPU here: using two devices on the CPU instead")
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

there = [device.name for device in tf.config.list_logical_devices(kind)]
numbers = args.gpus.split(",") if args.gpus else range(len(there))
devices = [f"/device:{kind}:{number}" for number in numbers]
for device in devices:
    if device not in there:
        parser.error(f"there is no {device}, there are {', '.join(there)}")

if len(devices) == 1:
    strategy = tf.distribute.OneDeviceStrategy(devices[0])
else:
    strategy = tf.distribute.MirroredStrategy(devices)
replicas = strategy.num_replicas_in_sync
print(f"{type(strategy).__name__} on {', '.join(devices)}")
if args.batch_size % replicas:
    parser.error(f"--batch-size {args.batch_size} cannot be shared evenly by {replicas} replicas")

rng = np.random.default_rng(0)
x = rng.normal(size=(6_400, 20)).astype("float32")
y = (x[:, :10].sum(axis=1) > x[:, 10:].sum(axis=1)).astype("int64")
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x))
dataset = dataset.batch(args.batch_size, drop_remainder=True)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((20,)),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(2),
        ]
    )
    model.compile(
        optimizer="adam",
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

model.fit(dataset, epochs=args.epochs, verbose=2)
print("trained on synthetic data: loss and accuracy do not apply to real data")
