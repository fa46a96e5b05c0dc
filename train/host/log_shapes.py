"""Patterns for lines that Python, TensorFlow, absl and Keras print."""

from __future__ import annotations

import re

#: Control sequences of terminals.
ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
#: The same in decoded text.
CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")

#: Beginnings of TensorFlow's log lines by level: written by absl, and by other code.
ABSL, NATIVE = r"{level}\d{{4}} \d\d:", r"\d{{4}}-\d\d-\d\d [\d:.,]+: {level} "
#: The beginning of TensorFlow's advice about its build.
ADVICE = "To enable the following instructions: "
#: A line that gloo prints in each process of JAX.
GLOO = r"\[Gloo\] Rank \d+ is connected to "
#: The beginning of an epoch in Keras ``fit``, and of a bar: the batch and the number of batches.
EPOCH = r"Epoch (?P<epoch>[1-9][0-9]{0,8})/(?P<epochs>[0-9]{1,9})"
BATCH = r"(?P<batch>[0-9]{1,15})/(?:(?P<total>[0-9]{1,15})|Unknown) "
#: A bar of Keras up to its time. Keras prints hours and minutes only for the time to go: Keras 2
#: after ``ETA: ``, and Keras 3 between the drawn bar and the time of a step. The time of day in
#: ``05/27 10:14:15`` has neither.
_PER_STEP = r"(?= [0-9]{1,9}[mu]?s/)"
KERAS_BAR = (
    BATCH + r" *"
    r"(?P<mark>\[[=>.]*\] - |(?P<drawn>[\u2501=?\ufffd]{5,40} )|(?P<dash>- )|[^\w\s]+ )?"
    r"(?P<eta>ETA: )?"
    r"(?:(?:(?P<h>[0-9]{1,9}):)?(?P<m>[0-9]{1,2}):(?P<s>[0-9]{2})(?![:,][0-9]| ?[AaPp]\.?[Mm]\b)"
    r"(?(eta)|(?(drawn)" + _PER_STEP + r"|(?!)))"
    r"|(?P<seconds>[0-9]{1,9})s(?(mark)|(?(eta)|" + _PER_STEP + r")))"
)
#: A progress bar of tqdm, or its rate.
TQDM = r"\d+%\|.*\||\d(?:it/s|s/it)\b"

#: The beginning of faulthandler's report of a fatal signal, and of the stack of the current thread.
FATAL, CURRENT_THREAD = "Fatal Python error: ", "Current thread "
#: Output of C++ for an uncaught exception; ``TERMINATED`` comes first.
TERMINATED, WHAT = r"terminat\w+ ", r"what\(\):"


def logged(level: str) -> str:
    """Return a pattern for the beginning of TensorFlow's log lines of a level: I, W, E or F."""
    return "|".join(shape.format(level=level) for shape in (ABSL, NATIVE))
