"""Ends a rank on SIGINT at once, and on SIGTERM after a checkpoint if possible.

This module does not import TensorFlow.
"""

from __future__ import annotations

import os
import signal
import threading
import time

#: Seconds in which a rank that was asked to end must finish its step and save a checkpoint. The
#: launcher kills it after ``train_job_grace``, 10 s by default.
SAVE_WITHIN_S = 8.0
#: Seconds within which several SIGTERM count as one. Slurm sends SIGTERM to all processes of a job,
#: and the supervisor then sends it to the script again.
_TOGETHER_S = 2.0


class Signals:
    """Handles SIGTERM and SIGINT.

    Create it in the main thread, after the strategy, which takes SIGTERM for itself.

    SIGINT and a later second SIGTERM end the process at once. So does the first SIGTERM while
    ``saves`` is False. Otherwise, the first SIGTERM only sets ``asked``. The process then ends
    after SAVE_WITHIN_S seconds at the latest, because a rank that waits for a lost rank cannot
    write its checkpoint.
    """

    def __init__(self) -> None:
        #: Whether the process checks ``asked`` and ends by itself.
        self.saves = False
        #: Whether SIGTERM was received.
        self.asked = False
        # Python runs handlers only between instructions of the main thread, never while that waits
        # in a collective. Therefore a thread reads the signal numbers from a pipe.
        self._reader, sender = os.pipe()
        os.set_blocking(sender, False)
        signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: None)
        threading.Thread(target=self._watch, name="signals", daemon=True).start()

    def _watch(self) -> None:
        asked_at = 0.0
        while True:
            number = os.read(self._reader, 1)[0]
            since = time.monotonic() - asked_at
            if number == signal.SIGTERM and self.asked and since < _TOGETHER_S:
                continue
            if number == signal.SIGTERM and self.saves and not self.asked:
                self.asked, asked_at = True, time.monotonic()
                timer = threading.Timer(SAVE_WITHIN_S, os._exit, [128 + number])
                timer.daemon = True
                timer.start()
            elif number in (signal.SIGTERM, signal.SIGINT):
                os._exit(128 + number)
