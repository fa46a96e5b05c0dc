"""Times TensorFlow's own all-reduce over a gang, for the doctor: sums of 0.1 to 100 MB.

Runs as any other script of a gang; what it finds are the metrics of its progress records.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path

import tensorflow as tf

#: How often so many millions of bytes are summed, and how often before that.
SIZES, WARM = {0.1: 30, 1: 20, 10: 10, 100: 3}, 2
#: Seconds that one sum of the next size may be expected to take.
LONGEST = 5.0


def main() -> None:
    """Sum tensors of each size over all ranks and report the milliseconds of one sum."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def over_ranks(value: tf.Tensor) -> tf.Tensor:
        own = strategy.run(lambda: tf.identity(value))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, own, axis=None)

    total = tf.function(over_ranks)
    found: dict[str, float] = {}
    for megabytes, count in SIZES.items():
        value = tf.ones([int(megabytes * 250_000)])
        for _ in range(WARM):
            total(value)
        times = []
        for _ in range(count):
            began = time.monotonic()
            total(value).numpy()
            times.append(time.monotonic() - began)
        seconds = statistics.median(times)
        # The mean over all ranks: they decide alike whether to go on.
        ranks = strategy.num_replicas_in_sync
        seconds = float(total(tf.constant([seconds]))[0]) / ranks
        found[f"all_reduce_{megabytes}mb_ms"] = 1e3 * seconds
        if 10 * seconds > LONGEST:
            break
    record = {"t": time.time(), "phase": "training", "step": 1, "steps": 1, "metrics": found}
    with Path(os.environ["TRAIN_PROGRESS_FILE"]).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
