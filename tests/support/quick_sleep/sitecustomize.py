"""Shortens the pauses of Ansible's modules: put this folder into PYTHONPATH of ansible-playbook."""

from __future__ import annotations

import sys
import time
from typing import Any

_sleep = time.sleep


def _short(seconds: Any) -> None:
    _sleep(min(seconds, 0.01))


if not any("ansible-playbook" in word for word in sys.orig_argv):
    time.sleep = _short
