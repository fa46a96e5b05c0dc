"""Brings the package ``train`` of this collection to its action plugins.

Ansible imports plugins without the collection's folder on sys.path.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from train.gang.actions import GangAction, HostAction, ObservingAction

__all__ = ["GangAction", "HostAction", "ObservingAction"]
