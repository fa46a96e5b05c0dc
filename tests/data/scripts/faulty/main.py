"""Ranks that exchange a number again and again until one of them does what it is told."""

import argparse
import json
import os
import time

parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, default=1, help="who is at fault")
parser.add_argument("--what", choices=("sleep", "raise", "eat"), required=True)
args = parser.parse_args()

AT = 20
chosen = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == args.rank
if chosen and args.what == "sleep":
    time.sleep(600)

import tensorflow as tf  # noqa: E402

strategy = tf.distribute.MultiWorkerMirroredStrategy()


@tf.function
def exchange():
    def one():
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([]))

    return strategy.run(one)


eaten = []
for step in range(1, 100_000):
    exchange()
    if step <= AT:
        with open(os.environ["TRAIN_PROGRESS_FILE"], "a") as stream:
            stream.write(json.dumps({"phase": "training", "step": step}) + "\n")
        time.sleep(0.1)
    elif chosen and args.what == "raise":
        raise ValueError("a bug")
    elif chosen:
        eaten.append(b"x" * 2**25)
