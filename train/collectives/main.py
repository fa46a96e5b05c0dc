"""Measures how long TensorFlow's all-reduce takes in a gang, for sums of 0.1 to 100 MB.

The doctor runs it as the script of a job. Its results are the metrics in its progress record.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path

import tensorflow as tf

#: Sizes of the sums, in millions of bytes.
SIZES = (0.1, 1, 10, 100)
#: Calls for each size, maximum number of sums in a call, and target duration of a call in seconds.
CALLS, MOST, CALL_S = 3, 30, 0.5
#: Maximum expected duration of a sum of the next size, in seconds.
LONGEST = 5.0


def main() -> None:
    """Sum tensors of each size over all ranks, and report the milliseconds per sum."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def mean(value: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        own = tf.identity(value)  # on the replica's device
        return context.all_reduce(tf.distribute.ReduceOp.MEAN, own)

    def repeated(value: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Compute the mean ``count`` times in one call, like a training with many steps."""

        def once(number: tf.Tensor, shared: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            own = strategy.experimental_local_results(strategy.run(mean, args=(shared,)))
            return number + 1, own[0]

        return tf.while_loop(lambda number, _: number < count, once, (tf.constant(0), value))[1]

    means = tf.function(repeated)
    found: dict[str, float] = {}
    count = MOST
    for megabytes in SIZES:
        value = tf.ones([int(megabytes * 250_000)])
        means(value, tf.constant(1))
        times = []
        for _ in range(CALLS):
            began = time.monotonic()
            means(value, tf.constant(count)).numpy()
            times.append((time.monotonic() - began) / count)
        # The mean over all ranks, so that all of them continue in the same way.
        seconds = float(means(tf.constant([statistics.median(times)]), tf.constant(1))[0])
        found[f"all_reduce_{megabytes}mb_ms"] = 1e3 * seconds
        if 10 * seconds > LONGEST:
            break
        count = max(1, min(MOST, int(CALL_S / (10 * seconds))))
    record = {"t": time.time(), "phase": "training", "step": 1, "steps": 1, "metrics": found}
    with Path(os.environ["TRAIN_PROGRESS_FILE"]).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
