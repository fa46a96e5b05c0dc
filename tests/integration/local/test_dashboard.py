"""The dashboard in a real browser, with real jobs on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, expect

from tests.support.bare_ranks import wait_until
from tests.support.browser import PATIENCE, driven_browser, save_screenshot
from tests.support.jobs import plain, rank_pid
from tests.support.lab import REPOSITORY, Lab, Labs, environment, free_port

#: Milliseconds for the page to show something.
SHOWN = 1000.0 * PATIENCE
#: The number of points of the first curve.
POINTS = "() => document.querySelector('#chart-0')?.data?.[0]?.x?.length ?? 0"


@pytest.fixture
def lab(local_lab: Labs) -> Lab:
    return local_lab()


@contextmanager
def dashboard(lab: Lab, port: int) -> Iterator[str]:
    """Run ``python -m train dashboard``, and yield its address."""
    command = [sys.executable, "-m", "train", *lab.words("dashboard", "--port", str(port))]
    with subprocess.Popen(
        command, cwd=REPOSITORY, env=environment(), stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[1]
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(PATIENCE) == 0


@pytest.fixture
def page() -> Iterator[Page]:
    """Yield a page whose scripts may not fail, and that loads only from this machine."""
    problems: list[str] = []
    with driven_browser() as browser:
        page = browser.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console",
            # While the dashboard is started again, requests fail.
            lambda message: problems.append(message.text) if "ERR_" not in message.text else None,
        )
        page.on(
            "request",
            lambda request: (
                problems.append(request.url)
                if not request.url.startswith(("http://127.0.0.1:", "data:"))
                else None
            ),
        )
        expect.set_options(timeout=SHOWN)
        page.set_default_timeout(SHOWN)
        yield page
    assert problems == []


def state_of(page: Page, job: str, state: str) -> None:
    """Wait until the table of jobs shows a job with a state."""
    row = page.locator("[data-part=jobs] tr", has_text=job)
    expect(row.locator(".state")).to_have_text(state)


def test_jobs_are_seen_to_start_to_fail_and_to_stop(lab: Lab, page: Page) -> None:
    port = free_port()
    steps = "--steps 2000 --seconds 0.05"
    with dashboard(lab, port) as address:
        page.goto(address)
        assert page.url == f"http://127.0.0.1:{port}/", "the token is not in the address"
        expect(page.locator("[data-part=jobs]")).to_contain_text("No jobs yet")
        save_screenshot(page, "dashboard-empty")
        first = plain(lab, "night-1", steps)
        page.get_by_role("link", name="night-1").click()
        expect(page.locator("[data-part=state] .state")).to_have_text("running")
        wait_until(lambda: page.evaluate(POINTS) > 1, page)
        points = page.evaluate(POINTS)
        wait_until(lambda: page.evaluate(POINTS) > points, page)
        page.get_by_role("link", name="worker-1").click()
        expect(page.locator("#log")).to_contain_text("TF_CONFIG")
        page.go_back()
        expect(page.locator("#status")).to_have_text("live")
        save_screenshot(page, "dashboard-running")
    expect(page.locator("#status")).to_contain_text("no connection")
    with dashboard(lab, port):
        expect(page.locator("#status")).to_have_text("live")
        os.kill(rank_pid(lab.root, "night-1", "worker-1"), signal.SIGKILL)
        summary = page.locator("[data-part=summary]")
        expect(summary.locator("h1")).to_contain_text("failed")
        expect(summary).to_contain_text("worker-1 on worker1")
        expect(page.locator("[data-part=state]")).to_contain_text("Restart")
        save_screenshot(page, "dashboard-failed")
        assert first.process.wait(PATIENCE) == 1
        page.goto(f"http://127.0.0.1:{port}/")
        state_of(page, "night-1", "failed")
        second = plain(lab, "night-2", steps)
        state_of(page, "night-2", "running")
        page.get_by_role("link", name="night-2").click()
        page.get_by_role("link", name="Stop …").click()
        page.get_by_role("button", name="Stop the job").click()
        expect(page.locator("[data-part=action] .state")).to_have_text("success (exit code 0)")
        assert second.process.wait(PATIENCE) == 3
        page.goto(f"http://127.0.0.1:{port}/")
        state_of(page, "night-2", "stopped")
        expect(page.locator("[data-part=hosts] .state").first).to_have_text("up")
        save_screenshot(page, "dashboard-overview")
