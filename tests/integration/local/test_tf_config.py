"""``python -m train tf-config``, against what a job gives its ranks."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

from tests.support.jobs import PLAIN, train
from tests.support.lab import Lab


def test_it_prints_what_each_rank_of_a_job_finds(local_lab: Callable[..., Lab]) -> None:
    lab = local_lab(chief=1, worker=2, evaluator=1)
    done = train(*lab.words("tf-config"))
    assert (done.returncode, done.stderr) == (0, "")
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["host"] for line in printed] == ["chief0", "worker0", "worker1", "evaluator0"]
    assert not lab.runs_dir.exists()

    one = train(*lab.words("tf-config"), "worker1")
    assert json.loads(one.stdout) == printed[2]["TF_CONFIG"]

    assert lab.run("--job", "same", "--script", str(PLAIN), arguments=["--steps", "1"]).code == 0
    for line in printed:
        task = "{type}-{index}".format(**line["TF_CONFIG"]["task"])
        log = (lab.runs_dir / "same/logs" / f"{task}.log").read_text()
        (found,) = [row for row in log.splitlines() if row.startswith("TF_CONFIG ")]
        assert json.loads(found.removeprefix("TF_CONFIG ")) == line["TF_CONFIG"]


def test_it_refuses_what_a_job_would_and_a_host_that_is_not_there(
    local_lab: Callable[..., Lab],
) -> None:
    lab = local_lab()
    unknown = train(*lab.words("tf-config"), "worker7")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "worker7 has no rank, there are worker0, worker1" in unknown.stderr

    hosts = json.loads((lab.inventory / "hosts.yml").read_text())["all"]["children"]["worker"][
        "hosts"
    ]
    with socket.create_server(("0.0.0.0", hosts["worker1"]["train_job_port"])):
        busy = train(*lab.words("tf-config"))
    assert (busy.returncode, busy.stdout) == (2, "")
    assert "is in use by pid" in busy.stderr
