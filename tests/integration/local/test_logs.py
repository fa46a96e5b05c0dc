"""``python -m train logs``: of all ranks together, of one rank, and while the logs grow."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

from tests.support.bare_ranks import wait_until
from tests.support.job_folders import lay_out
from tests.support.jobs import ansible_of, train, write_script
from tests.support.lab import Command, Lab, Labs

#: Prints numbered lines, some of them long, with a bar and bytes that are not text in between.
#: After ten lines it waits for a file. In the first attempt, one rank is killed after a hundred.
SCRIPT = """
import json, os, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
address = config["cluster"]["worker"][task["index"]]
server = socket.create_server(("", int(address.rpartition(":")[2])), reuse_port=False)
name = f"{task['type']}-{task['index']}"
attempt = os.environ["TRAIN_ATTEMPT"]
for number in range(150):
    filling = str(number % 10) * (number % 7 * 500)
    print(f"{name} attempt {attempt} line {number}", filling, flush=True)
    sys.stdout.buffer.write(b"\\b\\b\\b\\r1/2 - \\xff\\b\\b\\b\\r2/2 - \\xff\\n")
    sys.stdout.flush()
    with open(os.environ["TRAIN_PROGRESS_FILE"], "a") as stream:
        stream.write(json.dumps({"phase": "training", "step": number}) + "\\n")
    while number == 10 and not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
    if number == 100 and (name, attempt) == ("worker-1", "1"):
        os.kill(os.getpid(), 9)
    time.sleep(0.02)
time.sleep(1)
"""


def ended_job(lab: Lab) -> None:
    """Stage a job whose ranks have logs of three lines."""
    for index in (0, 1):
        log = f"first of {index}\n\b\b\r1/2 bar\b\b\r2/2 bar\n".encode() + b"last \xff"
        lay_out(lab.root, "night", f"worker-{index}", host=f"worker{index}", log=log)


def test_logs_of_all_ranks_and_of_one(local_lab: Labs) -> None:
    lab = local_lab()
    ended_job(lab)
    done = train(*lab.words("logs", "night"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "worker-0 | first of 0",
        "worker-0 | 2/2 bar",
        "worker-0 | last \ufffd",
        "worker-1 | first of 1",
        "worker-1 | 2/2 bar",
        "worker-1 | last \ufffd",
    ]
    done = train(*lab.words("logs", "night", "--task", "worker-1", "--tail", "2", "--follow"))
    assert done.stdout.splitlines() == ["2/2 bar", "last \ufffd"]
    done = train(*lab.words("logs", "night", "--task", "worker-7"))
    assert done.returncode == 2
    assert "job night has no rank worker-7; its ranks are worker-0, worker-1" in done.stderr


def test_the_playbook_brings_logs_into_a_folder(local_lab: Labs, tmp_path: Path) -> None:
    lab = local_lab()
    ended_job(lab)
    for _ in range(2):  # the second time, the files exist
        done = lab.playbook(
            "logs.yml", train_job_id="night", train_job_logs_dir=str(tmp_path / "here")
        )
        assert done.returncode == 0, done.stdout
        log = (tmp_path / "here/logs/worker-1.log").read_bytes()
        assert log == b"first of 1\n\b\b\r1/2 bar\b\b\r2/2 bar\nlast \xff"


def numbers(lines: list[str], task: str, attempt: int = 1) -> list[int]:
    """Return the numbers of a rank's lines, all of which must be complete."""
    found = []
    for line in lines:
        match = re.fullmatch(rf"{task} \| {task} attempt {attempt} line (\d+) ?(\d*)", line)
        if match:
            number = int(match[1])
            assert match[2] == str(number % 10) * (number % 7 * 500)
            found.append(number)
    return found


def test_a_job_is_followed_through_its_attempts_and_ctrl_c_ends_following_and_nothing_else(
    local_lab: Labs, tmp_path: Path
) -> None:
    lab, go = local_lab(), tmp_path / "go"
    command = lab.start(
        *("--job", "night", "--script", write_script(tmp_path, SCRIPT)),
        arguments=[str(go)],
        train_job_max_restarts=1,
    )
    command.wait_for(lambda event: event["event"] == "rank" and event["phase"] == "running")
    starter = ansible_of(lab)
    words = lab.words("logs", "night", "--follow", train_job_update_interval=0.1)
    signums = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    following = [Command(*words).process for _ in signums]
    for process, signum in zip(following, signums, strict=True):
        assert process.stdout is not None
        assert re.match(r"worker-. \| worker-. attempt 1 line 0", process.stdout.readline())
        process.send_signal(signum)
        assert process.wait(30) == 130
    assert sorted(ansible_of(lab)) == sorted(starter)

    last = Command(*words).process
    assert last.stdout is not None
    lines = [last.stdout.readline().rstrip()]
    go.touch()
    lines += last.stdout.read().splitlines()
    error = last.communicate()[1]
    run = command.end()
    assert (run.code, last.returncode) == (0, 0), (run.result, error)
    assert numbers(lines, "worker-1") == list(range(101))
    found = len(numbers(lines, "worker-0")) + 101
    for task in ("worker-0", "worker-1"):
        assert numbers(lines, task, attempt=2) == list(range(150))
        found += 150
        logs = (lab.runs_dir / f"night/logs/{task}.log").read_bytes()
        assert logs.count(b"\n") == 300, "the other one got all, too"
    bars = [lines.count(f"worker-{index} | 2/2 - \ufffd") for index in (0, 1)]
    # The last line of a rank that was ended may be cut off or lack its bar.
    assert 2 * found - 3 <= found + sum(bars) <= len(lines) <= 2 * found + 1, "a line was torn"
    assert "all ranks ended: waiting 30 s for the next attempt" in error


def test_whoever_has_seen_enough_leaves_nothing_behind(local_lab: Labs) -> None:
    lab = local_lab()
    log = b"".join(b"line %d\n" % number for number in range(100_000))
    lay_out(lab.root, "night", "worker-0", host="worker0", log=log)
    process = Command(*lab.words("logs", "night")).process
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "worker-0 | line 0\n"
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == ""
    wait_until(lambda: not ansible_of(lab), "the end of Ansible", timeout=30)


#: Writes 40 MB to its log and fails; the port is opened first.
FLOOD = """
import json, os, socket
task = json.loads(os.environ["TF_CONFIG"])["task"]
address = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][task["index"]]
server = socket.create_server(("", int(address.rpartition(":")[2])), reuse_port=False)
for number in range(400):
    print(f"block {number} " + "x" * 99_988, flush=True)
raise ValueError(f"the last words of {task['index']}")
"""


def test_a_large_log_delays_no_end_and_is_kept_within_its_limits(
    local_lab: Labs, tmp_path: Path
) -> None:
    lab = local_lab()
    run = lab.run(
        *("--job", "flood", "--script", write_script(tmp_path, FLOOD)),
        train_job_python=sys.executable,
        train_job_max_restarts=0,
        train_job_log_limit_mb=8,
        train_job_host_log_limit_mb=16,
    )
    assert run.code == 1
    assert "ValueError: the last words of" in run.result["message"].splitlines()[-1]
    notices = "\n".join(e["text"] for e in run.events if e["event"] == "notice")
    assert "parts of its log were not fetched (train_job_log_limit_mb)" in notices
    for index in (0, 1):
        (log,) = lab.root.glob(f"**/jobs/flood/worker-{index}/stdout.log")
        assert log.stat().st_size > 39e6
        assert log.stat().st_blocks * 512 < 20 * 2**20
        copy = lab.runs_dir / f"flood/logs/worker-{index}.log"
        assert copy.stat().st_size < 8 * 2**20
        assert copy.read_text().endswith(f"ValueError: the last words of {index}\n")
    shown = train(*lab.words("logs", "flood", "--task", "worker-0", "--tail", "1"))
    assert shown.stdout == "ValueError: the last words of 0\n"
