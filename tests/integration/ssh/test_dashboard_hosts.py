"""The dashboard with hosts over SSH: one goes down and comes back, and a job is seen from afar."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from tests.support import faults
from tests.support.bare_ranks import wait_until
from tests.support.jobs import plain
from tests.support.lab import REPOSITORY, Labs, environment, free_port
from tests.support.testbed import Testbed

pytestmark = [pytest.mark.docker, pytest.mark.soak]
#: A cell of a table, and the word of a state in it.
HOST = re.compile(r'data-label="host">(.*?)</td>\s*<td data-label="state"><span [^>]*>(.*?)</span>')
JOB = re.compile(
    r'data-label="job"><a [^>]*>(.*?)</a></td>\s*<td data-label="state"><span [^>]*>(.*?)</span>'
)


def test_a_host_that_goes_down_and_comes_back_is_reported(ssh_lab: Labs, testbed: Testbed) -> None:
    lab = ssh_lab(worker=3)
    elsewhere = str(lab.runs_dir.parent / "another")  # like another control node
    port = str(free_port())
    words = lab.words("dashboard", "--port", port, train_job_runs_dir=elsewhere)
    command = [sys.executable, "-m", "train", *words]
    with subprocess.Popen(
        command, cwd=REPOSITORY, env=environment(), stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split()[1]
        opener = build_opener(HTTPCookieProcessor())

        def shown() -> str:
            with opener.open(address) as answer:
                return str(answer.read().decode())

        def states() -> dict[str, str]:
            return dict(HOST.findall(shown()))

        try:
            wait_until(lambda: [*states().values()] == ["up"] * 3, states)
            job = plain(lab, "night", "--steps 3000 --seconds 0.1")
            # The hosts may have jobs of other tests.
            wait_until(lambda: dict(JOB.findall(shown())).get("night") == "running", shown)
            assert "not followed from this machine" in shown()
            job.process.send_signal(signal.SIGINT)  # without a terminal, it is left running
            assert job.process.wait(60) == 130
            with faults.off(testbed.hosts[1]):
                wait_until(lambda: states()["worker1"] == "not answering", states)
                assert states()["worker0"] == "up"
            wait_until(lambda: states()["worker1"] == "up", states)
        finally:
            server.send_signal(signal.SIGINT)
            stopped = lab.playbook("stop.yml", train_job_id="night")
        assert server.wait(60) == 0
    assert stopped.returncode == 0
