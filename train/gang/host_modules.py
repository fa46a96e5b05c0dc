"""What a module of the launcher needs on a host, for those that go without Ansible's own Python.

Such a module takes its arguments as a literal in its own text (Ansible calls it JSONARGS) and goes
to the host's interpreter by its standard input: one command, no file, and nothing of Ansible's is
imported, which would take longer than the work. So does what asks a host for its leases.
"""

from __future__ import annotations

import base64
import functools
import io
import zipfile
from pathlib import Path

HOST = Path(__file__).resolve().parents[1] / "host"


@functools.cache
def launcher() -> str:
    """Return the programs of train/host as a zip archive that Python imports from, in base64."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(HOST.glob("*.py")):
            archive.write(path, f"host/{path.name}")
    return base64.b64encode(packed.getvalue()).decode()
