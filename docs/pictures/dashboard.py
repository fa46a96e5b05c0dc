"""Takes the pictures of the dashboard from real jobs: ``make pictures``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).resolve().parent
#: The script of the job that fails.
_BROKEN = 'import numpy\n\nnumpy.loadtxt("/data/digits.csv")\n'
#: Size of the window, and seconds until the job has curves.
_WIDTH, _HEIGHT, _WAIT_S = 1240, 860, 40.0


def train(*words: str) -> list[str]:
    """Return the words of a command about the hosts in the pictures."""
    return [sys.executable, "-m", "train", words[0], "-i", str(HERE / "hosts.yml"), *words[1:]]


def take(page: Page, name: str) -> None:
    """Save the visible part of a page."""
    page.screenshot(path=HERE / f"{name}.png")


def main() -> int:
    """Run jobs on this machine and save two pages; return the exit code."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        runs = ["-e", f"train_job_runs_dir={folder}/runs", "-e", f"train_job_root={folder}/hosts"]
        script = Path(folder, "early/main.py")
        script.parent.mkdir()
        script.write_text(_BROKEN, encoding="utf-8")
        subprocess.run(train("run", *runs, "--job", "digits-1", "--", "--epochs", "30"), check=True)
        subprocess.run(train("run", *runs, "--job", "early", "--script", str(script)), check=False)
        words = train("run", *runs, "--job", "night-1", "--", "--epochs", "1500")
        with (
            subprocess.Popen(words) as job,
            subprocess.Popen(train("dashboard", *runs), stdout=subprocess.PIPE, text=True) as board,
        ):
            assert board.stdout is not None
            options = ["--no-sandbox"] if os.geteuid() == 0 else []
            program = shutil.which("chromium")
            browser = driver.chromium.launch(executable_path=program, args=options)
            page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
            page.goto(board.stdout.readline().split()[1])
            page.locator(".meter").first.wait_for(timeout=60_000)
            time.sleep(_WAIT_S)
            take(page, "dashboard")
            page.get_by_role("link", name="night-1").click()
            page.locator("#chart-1 .plot-container").wait_for(timeout=60_000)
            time.sleep(15)
            take(page, "dashboard-job")
            browser.close()
            board.terminate()
            subprocess.run(train("stop", *runs, "night-1"), check=True)
            job.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
