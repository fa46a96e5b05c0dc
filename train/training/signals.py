"""Ends a rank on SIGTERM and SIGINT, after a checkpoint where one can be made. No TensorFlow."""

from __future__ import annotations

import os
import signal
import threading

#: Seconds that a rank asked to end has for the end of its step and a checkpoint. The launcher kills
#: it after ``train_job_grace``, 10 s by default.
SAVE_WITHIN_S = 8.0


class Signals:
    """Takes SIGTERM and SIGINT. Make it in the main thread, after the strategy: that takes SIGTERM.

    SIGINT ends the process at once, and so does a second SIGTERM. The first SIGTERM does while
    ``saves`` is False; then it only sets ``asked``, and the process ends after SAVE_WITHIN_S at
    the latest: a rank that waits for one that is gone never comes to its checkpoint.
    """

    def __init__(self) -> None:
        #: Whether the process checks ``asked`` and ends by itself.
        self.saves = False
        #: Whether SIGTERM came.
        self.asked = False
        # Python runs handlers between two instructions of the main thread, thus never while that
        # waits in a collective; so a thread reads the signals' numbers from a pipe.
        self._reader, sender = os.pipe()
        os.set_blocking(sender, False)
        signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: None)
        threading.Thread(target=self._watch, name="signals", daemon=True).start()

    def _watch(self) -> None:
        while True:
            number = os.read(self._reader, 1)[0]
            if number == signal.SIGTERM and self.saves and not self.asked:
                self.asked = True
                timer = threading.Timer(SAVE_WITHIN_S, os._exit, [128 + number])
                timer.daemon = True
                timer.start()
            elif number in (signal.SIGTERM, signal.SIGINT):
                os._exit(128 + number)
