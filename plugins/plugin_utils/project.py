"""Makes the package ``train`` of this collection importable, wherever the collection is.

Ansible imports plugins without the collection's folder on sys.path, so plugins import this module
before ``train``. The callback setup_output cannot do so.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
