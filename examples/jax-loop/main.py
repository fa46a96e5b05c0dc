"""A training loop in plain JAX on several hosts, with a mesh over all of their devices."""

import argparse
import json
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--batch-size", type=int, default=64, help="of each process")
parser.add_argument("--save-every", type=int, default=50, help="steps between two checkpoints")
args = parser.parse_args()

# Before any computation. Without these variables, the script runs in one process.
if "JAX_NUM_PROCESSES" in os.environ:
    jax.distributed.initialize(  # the address is in JAX_COORDINATOR_ADDRESS
        num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
        process_id=int(os.environ["JAX_PROCESS_ID"]),
    )

process, processes = jax.process_index(), jax.process_count()
mesh = Mesh(np.array(jax.devices()), ("data",))
shared = NamedSharding(mesh, PartitionSpec("data"))
replicated = NamedSharding(mesh, PartitionSpec())
saved = Path(os.environ.get("TRAIN_CHECKPOINT_DIR", "checkpoints"), "state.npz")


def first_weights():
    """Return the weights of a small network."""
    random = np.random.default_rng(0)
    return {
        "hidden": random.normal(0, 0.5, (2, 32)).astype("float32"),
        "hidden_bias": np.zeros(32, "float32"),
        "output": random.normal(0, 0.2, (32, 4)).astype("float32"),
        "output_bias": np.zeros(4, "float32"),
    }


def batch(step):
    """Return the points of this process for a step, and their quadrants."""
    points = np.random.default_rng((step, process)).uniform(-1, 1, (args.batch_size, 2))
    quadrants = 2 * (points[:, 0] > 0) + (points[:, 1] > 0)
    return points.astype("float32"), quadrants.astype("int32")


def loss_of(weights, points, quadrants):
    """Return the mean loss of a batch."""
    hidden = jax.nn.relu(points @ weights["hidden"] + weights["hidden_bias"])
    logits = hidden @ weights["output"] + weights["output_bias"]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), quadrants[:, None], axis=1)
    return -chosen.mean()


@jax.jit
def train_step(weights, points, quadrants):
    """Return the weights after a step, and the loss. JAX adds up the gradients of all processes."""
    loss, gradients = jax.value_and_grad(loss_of)(weights, points, quadrants)
    return jax.tree.map(lambda w, g: w - 0.5 * g, weights, gradients), loss


def save(step, weights):
    """Save a checkpoint in the first process. The weights are the same in all."""
    if process == 0:
        saved.parent.mkdir(parents=True, exist_ok=True)
        part = saved.with_name("part.npz")
        np.savez(part, step=step, **{name: np.asarray(value) for name, value in weights.items()})
        part.replace(saved)


def restore():
    """Return the completed steps and the weights. All processes get those of the first one."""
    step, weights = 0, first_weights()
    if process == 0 and saved.exists():
        with np.load(saved) as stored:
            step, weights = int(stored["step"]), {name: stored[name] for name in weights}
    if processes > 1:
        step, weights = multihost_utils.broadcast_one_to_all((step, weights))
    return int(step), jax.device_put(weights, replicated)


def report(**record):
    """Append a line to the launcher's progress file, if there is one."""
    if "TRAIN_PROGRESS_FILE" in os.environ:
        with Path(os.environ["TRAIN_PROGRESS_FILE"]).open("a") as stream:
            stream.write(json.dumps({"phase": "training", **record}) + "\n")


begun, weights = restore()
devices = len(jax.devices())
print(f"process {process} of {processes}, {devices} devices, from step {begun}", flush=True)
shown, loss = 0.0, np.nan  # in case a restart finds all steps completed
for step in range(begun + 1, args.steps + 1):
    part = (jax.make_array_from_process_local_data(shared, value) for value in batch(step))
    weights, loss = train_step(weights, *part)
    if time.monotonic() - shown > 0.5 or step == args.steps:
        shown = time.monotonic()
        report(step=step, steps=args.steps, loss=float(loss))
    if step % args.save_every == 0 or step == args.steps:
        save(step, weights)

norm = sum(float(jnp.linalg.norm(value)) for value in weights.values())
print(f"loss {float(loss):.4f}; sum of the norms of the weights, the same everywhere: {norm:.6f}")
if process == 0:
    folder = Path(os.environ.get("TRAIN_MODEL_DIR", "model"))
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "weights.npz", **{name: np.asarray(value) for name, value in weights.items()})
