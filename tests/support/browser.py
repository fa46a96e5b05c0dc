"""Opens pages in headless Chromium and records what they do, once or while a test drives them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright import sync_api

from tests.support.lab import CACHE, run

#: The folder where screenshots remain after the tests.
SCREENSHOTS = CACHE / "screenshots"
#: Seconds for a start on a busy machine.
PATIENCE = 120
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *(
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--disable-background-networking",
    ),
    *("--enable-logging=stderr", "--v=0", "--virtual-time-budget=5000", "--window-size=1280,2000"),
)


@dataclass(frozen=True)
class Opened:
    """The state of a page after it has loaded.

    Attributes:
        html: its elements, without scripts.
        console: its console output, including errors in scripts.
        requests: the network addresses that it requested.
        screenshot: the file of its screenshot.
    """

    html: str
    console: list[str]
    requests: list[str]
    screenshot: Path

    def count(self, start: str) -> int:
        """Return how many elements have a class attribute that starts with ``start``."""
        return self.html.count(f'class="{start}')


def _program() -> str:
    """Return the path of the browser; skip the test if there is none."""
    browser = next(filter(None, map(shutil.which, _NAMES)), None)
    if browser is None:
        pytest.skip(f"none of {', '.join(_NAMES)} is in PATH")
    return browser


def save_screenshot(page: sync_api.Page, name: str) -> None:
    """Save a whole page as an artifact of the tests."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True, timeout=1000 * PATIENCE)


@contextmanager
def driven_browser() -> Iterator[sync_api.Browser]:
    """Yield a browser that the test drives."""
    words = ["--no-sandbox", "--disable-dev-shm-usage"]
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_program(), args=words)
        try:
            yield browser
        finally:
            browser.close()


def open_page(page: Path | str, name: str, folder: Path) -> Opened:
    """Open a file or an address in a fresh browser; skip the test if there is none.

    Args:
        name: of the screenshot.
        folder: for the browser's files.
    """
    browser = _program()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    picture, log = SCREENSHOTS / f"{name}.png", folder / f"{name}.json"
    picture.unlink(missing_ok=True)
    own = (f"--user-data-dir={folder / name}", f"--log-net-log={log}", f"--screenshot={picture}")
    address = page.as_uri() if isinstance(page, Path) else page
    done = run(browser, *_OPTIONS, *own, "--dump-dom", address, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    assert picture.is_file(), done.stderr[-3000:]
    asked = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    return Opened(
        html=re.sub(r"<script>.*?</script>", "", done.stdout, flags=re.DOTALL),
        console=[line for line in done.stderr.splitlines() if ":CONSOLE:" in line],
        # The browser's own requests have no origin.
        requests=[
            about["url"]
            for about in asked
            if about.get("initiator", "not an origin") != "not an origin"
        ],
        screenshot=picture,
    )
