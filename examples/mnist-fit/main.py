"""TensorFlow's tutorial on multi-worker training with Keras fit; it resumes after a restart."""

import argparse
import json
import os
import tempfile
from pathlib import Path

import mnist
import tensorflow as tf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--steps-per-epoch", type=int, default=70)
parser.add_argument("--per-worker-batch-size", type=int, default=64)
parser.add_argument("--backup-dir", help="folder that all workers share, to resume from")
args = parser.parse_args()

tf_config = json.loads(os.environ.get("TF_CONFIG", "{}"))
cluster = tf_config.get("cluster", {"worker": ["localhost"]})
task = tf_config.get("task", {"type": "worker", "index": 0})
num_workers = len(cluster.get("chief", [])) + len(cluster.get("worker", []))
is_chief = task["type"] == "chief" or ("chief" not in cluster and task["index"] == 0)

strategy = tf.distribute.MultiWorkerMirroredStrategy()

global_batch_size = args.per_worker_batch_size * num_workers
multi_worker_dataset = mnist.mnist_dataset(global_batch_size)

with strategy.scope():
    # Build and compile the model within the strategy's scope.
    multi_worker_model = mnist.build_and_compile_cnn_model()

# Both callbacks run on every worker but only write on the chief.
logs = os.environ.get("TRAIN_TENSORBOARD_DIR", "tensorboard")
callbacks = [tf.keras.callbacks.TensorBoard(logs)]
if args.backup_dir:
    callbacks.append(tf.keras.callbacks.BackupAndRestore(args.backup_dir))

multi_worker_model.fit(
    multi_worker_dataset,
    epochs=args.epochs,
    steps_per_epoch=args.steps_per_epoch,
    callbacks=callbacks,
)

# Every worker must save, because saving may synchronize variables. Only the chief's copy is kept.
folder = Path(os.environ.get("TRAIN_MODEL_DIR", "model") if is_chief else tempfile.mkdtemp())
folder.mkdir(parents=True, exist_ok=True)
multi_worker_model.save(folder / "mnist.keras")

if not mnist.MNIST.exists():
    print("trained on synthetic images: loss and accuracy are not those of MNIST")
