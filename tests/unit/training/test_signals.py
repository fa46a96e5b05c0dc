"""How a rank of the training program reacts to SIGTERM."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from tests.support.lab import REPOSITORY

#: Prints whether it was asked to end, as soon as that is so.
RANK = """
import sys, time
sys.path.insert(0, {train!r})
from training import signals
signals._TOGETHER_S = 1.0
handled = signals.Signals()
handled.saves = True
print("ready", flush=True)
while not handled.asked:
    time.sleep(0.01)
print("asked", flush=True)
time.sleep(60)
"""


def test_signals_that_arrive_together_are_one_and_a_later_one_ends_the_rank() -> None:
    program = RANK.format(train=str(REPOSITORY / "train"))
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
        rank.send_signal(signal.SIGTERM)
        assert rank.stdout.readline() == "asked\n"
        rank.send_signal(signal.SIGTERM)  # as Slurm and the supervisor do
        time.sleep(1.2)
        assert rank.poll() is None
        rank.send_signal(signal.SIGTERM)
        assert rank.wait(10) == 128 + signal.SIGTERM
