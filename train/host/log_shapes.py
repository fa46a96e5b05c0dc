"""How lines look that Python, TensorFlow, absl and Keras print: what several parts look for."""

from __future__ import annotations

import re

#: Control sequences of terminals.
ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
#: Of decoded text.
CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")

#: How TensorFlow's lines begin, by level: those that absl writes, and those that it does not.
ABSL, NATIVE = r"{level}\d{{4}} \d\d:", r"\d{{4}}-\d\d-\d\d [\d:.,]+: {level} "
#: How TensorFlow's advice about its build begins.
ADVICE = "To enable the following instructions: "
#: How ``fit`` of Keras begins an epoch, and a bar: the batch and their number.
EPOCH = r"Epoch (?P<epoch>[1-9][0-9]{0,8})/(?P<epochs>[0-9]{1,9})"
BATCH = r"(?P<batch>[0-9]{1,15})/(?:(?P<total>[0-9]{1,15})|Unknown) "
#: A bar of tqdm, or a rate as it shows one.
TQDM = r"\d+%\|.*\||\d(?:it/s|s/it)\b"

#: How faulthandler begins its report of a fatal signal, and the stack of the thread that it hit.
FATAL, CURRENT_THREAD = "Fatal Python error: ", "Current thread "
#: What C++ prints of an exception that nothing catches; ``TERMINATED`` comes first.
TERMINATED, WHAT = r"terminat\w+ ", r"what\(\):"


def logged(level: str) -> str:
    """Return a pattern of how a line of TensorFlow begins that is of a level: I, W, E or F."""
    return "|".join(shape.format(level=level) for shape in (ABSL, NATIVE))
