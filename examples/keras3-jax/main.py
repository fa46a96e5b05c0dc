"""Keras 3 with fit on several hosts, on the JAX backend; it resumes after a restart."""

import argparse
import hashlib
import os
from pathlib import Path

import keras

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--steps-per-epoch", type=int, default=30)
parser.add_argument("--batch-size", type=int, default=32, help="of each process")
args = parser.parse_args()

# Before any computation. Without these variables, the script runs in one process.
if "KERAS_DISTRIBUTION_NUM_PROCESSES" in os.environ:
    keras.distribution.initialize()

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import multihost_utils  # noqa: E402

process, processes = jax.process_index(), jax.process_count()
keras.utils.set_random_seed(0)  # the same first weights everywhere
# Every process passes its own part of the data to fit.
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))


def images(number, seed):
    """Return noisy images of a bar in one of ten places, and the places."""
    random = np.random.default_rng(seed)
    places = random.integers(0, 10, number)
    pixels = random.normal(0, 0.5, (number, 28, 28, 1)).astype("float32")
    for image, place in zip(pixels, places, strict=True):
        image[:, 2 * place + 4] += 1
    return pixels, places


model = keras.Sequential(
    [
        keras.Input((28, 28, 1)),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(0.002),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.optimizer.build(model.trainable_variables)
state = [*model.variables, *model.optimizer.variables]
saved = Path(os.environ.get("TRAIN_CHECKPOINT_DIR", "checkpoints"), "state.npz")


class Save(keras.callbacks.Callback):
    """Saves all variables after each epoch in the first process. They are the same in all."""

    def on_epoch_end(self, epoch, logs=None):
        """Save to another file first, so that a complete one always exists."""
        if process == 0:
            saved.parent.mkdir(parents=True, exist_ok=True)
            part = saved.with_name("part.npz")
            np.savez(part, np.int64(epoch + 1), *map(np.asarray, state))
            part.replace(saved)


def restore():
    """Return the number of completed epochs. All processes get the first one's variables."""
    values = [np.int64(0), *map(np.asarray, state)]
    if process == 0 and saved.exists():
        with np.load(saved) as stored:
            values = [stored[name] for name in stored.files]
    if processes > 1:
        values = multihost_utils.broadcast_one_to_all(values)
    for variable, value in zip(state, values[1:], strict=True):
        variable.assign(value)
    return int(values[0])


model.fit(
    *images(args.steps_per_epoch * args.batch_size, seed=process),
    batch_size=args.batch_size,
    initial_epoch=restore(),
    epochs=args.epochs,
    callbacks=[Save()],
)

weights = [np.asarray(value) for value in model.get_weights()]
digest = hashlib.sha256(b"".join(value.tobytes() for value in weights)).hexdigest()
print(f"SHA-256 of the weights, the same in every process: {digest[:16]}")
# Every process must save, each in a separate folder, because saving synchronizes variables.
folder = Path(os.environ.get("TRAIN_MODEL_DIR", f"model-{process}"))
folder.mkdir(parents=True, exist_ok=True)
model.save(folder / "model.keras")
print("trained on synthetic images: loss and accuracy do not apply to real data")
