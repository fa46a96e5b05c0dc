"""Takes the screenshots in the documentation from a real job: ``make pictures``."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from train.cli.display import LiveDisplay
from train.cli.job import Event, Job, follow

HERE = Path(__file__).resolve().parent
#: The fraction of the steps that are done when the picture is taken.
_TAKEN_AT = 0.4
#: Columns of the terminal in the picture, enough to show all cells in full.
_WIDTH = 150
#: Fonts that rich's pictures load from a network.
_FONTS = re.compile(r"@font-face \{.*?\}", re.DOTALL)


class _Camera(LiveDisplay):
    """A live table that is saved as a picture once during the training."""

    def __init__(self, path: Path, run_dir: Path) -> None:
        super().__init__(run_dir)
        self._path = path
        self.taken = False

    def event(self, event: Event) -> None:
        """Show an event; save the table when all ranks have advanced enough."""
        super().event(event)
        progress = [rank["progress"] for rank in self._overview.ranks.values()]
        steps = [seen.get("step", 0) / seen["steps"] for seen in progress if seen.get("steps")]
        if self.taken or len(steps) < 3 or min(steps) < _TAKEN_AT:
            return
        console = Console(record=True, width=_WIDTH, file=io.StringIO())
        console.print(self)
        picture = console.export_svg(title="python -m train run")
        self._path.write_text(_FONTS.sub("", picture), encoding="utf-8")
        self.taken = True


def main() -> int:
    """Train on this machine and save the terminal's contents; return the exit code."""
    job = Job.start(None, ["--epochs", "300"], inventory=str(HERE / "hosts.yml"))
    display = _Camera(HERE / "run.svg", job.run_dir)
    display.result(follow(job, display.event))
    return 0 if display.taken else 1


if __name__ == "__main__":
    sys.exit(main())
