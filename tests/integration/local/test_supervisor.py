"""A supervisor survives its script's actions, and reports its own failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support import bare_ranks
from tests.support.job_folders import lay_out
from tests.support.lab import REPOSITORY
from train.host import (
    end_causes,
    rank_environment,
    rank_files,
    ranks,
    records,
    supervisor,
    temporary,
)

#: The output of Keras for a second epoch.
LINES = "Epoch 2/2\\n10/10 - 1s - loss: 0.5000\\n\\n"

#: Things that a script may do to the files of its rank. Then it prints LINES and ends.
DEEDS = {
    "log renamed": "os.rename('stdout.log', 'old.log')",
    "log removed": "os.unlink('stdout.log')",
    "log cut off": "os.truncate('stdout.log', 0)",
    "log is a folder": "os.unlink('stdout.log'); os.mkdir('stdout.log')",
    "log is a fifo": "os.unlink('stdout.log'); os.mkfifo('stdout.log')",
    "progress removed": "os.unlink('progress.jsonl')",
    "progress cut off": "os.truncate('progress.jsonl', 0)",
    "progress is a folder": "os.unlink('progress.jsonl'); os.mkdir('progress.jsonl')",
    "progress is a fifo": "os.unlink('progress.jsonl'); os.mkfifo('progress.jsonl')",
    "deep progress": "open('progress.jsonl', 'a').write('[' * 200_000 + '\\n{}\\n')",
    "long progress": "open('progress.jsonl', 'a').write('{' + ' ' * 30_000_000 + '}\\n')",
    "other progress": "open('progress.jsonl', 'a').write('7\\nnull\\n{\"step\": []}\\n\\0\\n')",
    "state removed": "os.unlink('state.json')",
    "stop is a folder": "os.mkdir('stop.json')",
    "no reserve": "os.unlink('reserve')",
}
SCRIPT = """
import os, time

os.chdir(os.environ["TRAIN_RANK_DIR"])
print("Epoch 1/2\\n10/10 - 1s - loss: 0.9000\\n", flush=True)
while not os.path.exists("progress.jsonl"):
    time.sleep(0.05)
time.sleep(0.7)
{deed}
time.sleep(0.7)  # a file that is as long as before within a turn seems to be the same
print("{lines}", flush=True)
time.sleep(1.2)
raise SystemExit({code})
"""
#: After these, the script seems to write its own records, or records cannot be written.
NOT_READ = {deed for deed in DEEDS if deed.endswith(" progress") or deed.startswith("progress is")}
FAILING = "log renamed, and an error"


@pytest.fixture(scope="module")
def rank_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the rank folder of each of these scripts, which all run at once."""
    folder = tmp_path_factory.mktemp("ranks")
    made = {}
    codes = {**dict.fromkeys(DEEDS, "0"), FAILING: "'' or 1 / 0"}
    for number, (name, code) in enumerate(codes.items()):
        script = folder / f"script-{number}.py"
        deed = DEEDS.get(name, DEEDS["log renamed"])
        script.write_text(SCRIPT.format(deed=deed, lines=LINES, code=code))
        made[name] = bare_ranks.stage(folder, f"worker-{number}", script)
        bare_ranks.start(made[name])
    return made


#: Prints the number of page faults for memory that it had already used and freed.
FAULTS = """
import resource

def fill():
    return b"x" * 40 * 2**20  # more than glibc keeps by default

fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(supervisor.glibc() < (2, 35), reason="glibc is older than these options")
def test_freed_memory_stays_with_the_script_unless_its_environment_has_it_otherwise(
    tmp_path: Path,
) -> None:
    script = tmp_path / "faults.py"
    script.write_text(FAULTS)
    own = {rank_environment.ENV_MALLOC: "glibc.malloc.hugetlb=0"}
    faults = []
    for task, environment in (("worker-0", {}), ("worker-1", own)):
        rank_dir = bare_ranks.stage(tmp_path, task, script, environment=environment)
        bare_ranks.start(rank_dir)
        assert bare_ranks.end(rank_dir)["exit_code"] == 0
        faults.append(int((rank_dir / rank_files.LOG_FILE).read_text()))
    assert faults[0] < 1000 < 100_000 <= faults[1], faults


def test_parameter_servers_get_threads_on_a_host_of_one_core(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text("import os; print(os.environ.get('TF_NUM_INTEROP_THREADS'))")
    usable, told = os.sched_getaffinity(0), []
    for cluster in ({"worker": ["a:1", "b:1"]}, {"chief": ["a:1"], "ps": ["b:1"]}):
        rank_dir = bare_ranks.stage(tmp_path, f"{next(iter(cluster))}-0", script)
        (rank_dir / rank_files.TF_CONFIG_FILE).write_text(json.dumps({"cluster": cluster}))
        os.sched_setaffinity(0, {min(usable)})
        try:
            bare_ranks.start(rank_dir)
        finally:
            os.sched_setaffinity(0, usable)
        assert bare_ranks.end(rank_dir)["exit_code"] == 0
        told.append((rank_dir / rank_files.LOG_FILE).read_text().strip())
    assert told == ["None", "4"]


TEMPORARY = """
import multiprocessing, os, tempfile
with multiprocessing.Manager() as manager:
    manager.list([1])
print(tempfile.mkdtemp())
"""


def test_temporary_files_of_a_script_go_with_it_unless_its_environment_has_it_otherwise(
    tmp_path: Path,
) -> None:
    script = tmp_path / "main.py"
    script.write_text(TEMPORARY)
    # The paths are short, because the script creates sockets there.
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        tempfile.TemporaryDirectory(dir="/tmp") as own_folder,
    ):
        own = {"TMPDIR": own_folder}
        for task, environment in (("worker-0", {}), ("worker-1", own)):
            rank_dir = bare_ranks.stage(Path(folder), task, script, environment=environment)
            bare_ranks.start(rank_dir)
            assert bare_ranks.end(rank_dir)["exit_code"] == 0
            made = Path((rank_dir / rank_files.LOG_FILE).read_text().strip())
            if environment:
                assert made.parent == Path(own_folder)
                assert made.exists()
            else:
                assert made.parent == rank_dir / temporary.NAME
        left = f"jobs/*/*/{temporary.NAME}"
        bare_ranks.wait_until(lambda: not list(Path(folder).glob(left)), "the removal")


@pytest.mark.parametrize("deed", DEEDS)
def test_a_rank_goes_on_whatever_becomes_of_its_files(
    rank_dirs: dict[str, Path], deed: str
) -> None:
    found = bare_ranks.end(rank_dirs[deed])
    assert (found["phase"], found["exit_code"], found["reason"]) == (records.COMPLETED, 0, "")
    assert found["step"] == (10 if deed in NOT_READ else 20)
    assert "Traceback" not in (rank_dirs[deed] / rank_files.SUPERVISOR_LOG_FILE).read_text()


def test_why_a_script_failed_is_known_though_its_log_has_another_name(
    rank_dirs: dict[str, Path],
) -> None:
    assert "ZeroDivisionError" in bare_ranks.end(rank_dirs[FAILING])["reason"]


def test_a_fault_of_the_supervisor_ends_the_script_and_has_a_cause(tmp_path: Path) -> None:
    script = REPOSITORY / "tests/data/scripts/leaver/main.py"
    words = ("session and empty environment", "stay")
    rank_dir = bare_ranks.stage(tmp_path, "worker-0", script, *words, max_runtime="an hour")
    mark = 98_765
    bare_ranks.start(rank_dir, mark)
    found = bare_ranks.end(rank_dir)
    assert (found["phase"], found["cause"]) == (records.FAILED, end_causes.INTERNAL)
    assert "which failed: TypeError: '>' not supported between instances" in found["reason"]
    bare_ranks.wait_until(lambda: not bare_ranks.marked()[mark], "what is left")
    said = (rank_dir / rank_files.SUPERVISOR_LOG_FILE).read_text()
    assert "Traceback" in said
    assert "in _limit" in said


@pytest.mark.parametrize(
    ("said", "cause", "reason"),
    [
        ("", end_causes.SUPERVISOR, "was killed"),
        ("cannot write state.json: x\n", end_causes.SUPERVISOR, "was killed"),
        ("x\nthe supervisor failed: OSError: a\n", end_causes.INTERNAL, "which failed: OSError: a"),
    ],
)
def test_a_supervisor_that_failed_was_not_killed(
    tmp_path: Path, said: str, cause: str, reason: str
) -> None:
    with subprocess.Popen(["true"]) as ended:
        about: dict[str, Any] = {"supervisor_pid": ended.pid, "supervisor_start": 1}
    rank_dir = lay_out(tmp_path, "a", "worker-0", host="a", phase=records.RUNNING, **about)
    (rank_dir / rank_files.SUPERVISOR_LOG_FILE).write_text(said)
    found = ranks.observe(str(rank_dir))
    assert (found["phase"], found["cause"]) == (records.FAILED, cause)
    assert reason in found["reason"]


def test_the_log_of_a_supervisor_has_a_limit(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * (supervisor._LOG_LIMIT + 1))
    code = "from train.host import supervisor; supervisor._bound_log()"
    with log.open("ab") as stream:
        command = [sys.executable, "-S", "-c", code]
        subprocess.run(command, cwd=REPOSITORY, stderr=stream, check=True)
    assert log.read_text() == "this log became too large and was emptied\n"


#: Writes a lot to its log and its progress, then its last lines. It continues after SIGTERM.
FLOOD = """
import json, os, signal, sys, time

if sys.argv[1] == "goes on":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
progress = open(os.environ["TRAIN_PROGRESS_FILE"], "a")
for number in range(200):
    sys.stdout.write(f"block {number} " + "x" * 99_988 + "\\n")
    record = json.dumps({"step": number + 1, "steps": 200, "phase": "training"}) + "\\n"
    progress.write(record * 1_500)
    time.sleep(0.01)
progress.close()
while sys.argv[1] == "goes on":
    sys.stdout.write("y" * 99_999 + "\\n")
    time.sleep(0.01)
raise ValueError("the last words")
"""
LIMIT = 1 << 20


def disk_use(path: Path) -> int:
    return path.stat().st_blocks * 512


@pytest.mark.parametrize("manner", ["ends", "goes on"])
def test_the_files_of_a_rank_have_a_limit_that_does_not_end_it(tmp_path: Path, manner: str) -> None:
    script = tmp_path / "flood.py"
    script.write_text(FLOOD)
    rank_dir = bare_ranks.stage(tmp_path, "worker-0", script, manner, log_limit=LIMIT, grace=2.0)
    log, progress = rank_dir / rank_files.LOG_FILE, rank_dir / rank_files.PROGRESS_FILE
    bare_ranks.start(rank_dir)
    if manner == "goes on":
        bare_ranks.wait_until(lambda: log.stat().st_size > 20 * LIMIT, "the flood")
        report = ranks.stop(str(rank_dir), 2.0, "was stopped")
        assert report["remaining"] == []
    found = bare_ranks.end(rank_dir)
    assert log.stat().st_size > 19 * LIMIT
    # Including the output of a rank between two iterations of its supervisor.
    assert disk_use(log) < 1.1 * LIMIT
    assert disk_use(progress) < 1.1 * LIMIT
    assert set(found["left_out"]) == {"log", "progress"}
    begin, end = found["left_out"]["log"]
    data = log.read_bytes()
    assert data.startswith(b"block 0 ")
    assert data[end:].strip(b"\0") == data[end:]
    assert found["step"] == 200
    said = (rank_dir / rank_files.SUPERVISOR_LOG_FILE).read_text().splitlines()
    assert len(said) == 2
    assert all("(train_job_host_log_limit_mb)" in line for line in said)
    if manner == "ends":
        assert "ValueError: the last words" in found["reason"]
        assert data.endswith(b"ValueError: the last words\n")
        assert begin < LIMIT


#: Ends at once and leaves an active child behind.
LEAVING = """
import os, subprocess, sys
{start}
os._exit(0)
"""
WRITES = (
    "import os, time\n"
    "while True: open(os.environ['TRAIN_PROGRESS_FILE'], 'a').write('x'); time.sleep(0.2)"
)
STARTS = {
    "daemon": "if os.fork() == 0:\n    os.setsid()\n    import time\n    time.sleep(600)",
    "computes": "subprocess.Popen([sys.executable, '-c', 'while True: pass'])",
    "writes": f"subprocess.Popen([sys.executable, '-c', {WRITES!r}])",
    "sleeps": "subprocess.Popen(['sleep', '600'], start_new_session=True)",
    "helper": "subprocess.Popen(['sh', '-c', 'while true; do : tensorboard; done'])",
    "ends": "subprocess.Popen([sys.executable, '-c', 'sum(range(10**7))'])",
    "nothing": "",
}


def test_processes_that_are_at_work_when_their_script_ends(tmp_path: Path) -> None:
    made = {}
    for number, (name, text) in enumerate(STARTS.items()):
        script = tmp_path / f"script-{number}.py"
        script.write_text(LEAVING.format(start=text))
        made[name] = bare_ranks.stage(tmp_path, f"worker-{number}", script)
        bare_ranks.start(made[name])
    states = {name: bare_ranks.end(rank_dir) for name, rank_dir in made.items()}
    assert {state["phase"] for state in states.values()} == {"completed"}
    assert {name for name, state in states.items() if "at_work" in state} == {
        *("daemon", "computes", "writes")
    }
    assert states["daemon"]["at_work"][0].endswith("script-0.py")


def test_one_command_starts_each_rank_once_although_others_fail(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os\nprint(os.environ['TRAIN_RANK_DIR'], flush=True)\n")
    linked, broken, *working = [
        bare_ranks.stage(tmp_path, f"worker-{index}", script) for index in range(5)
    ]
    missing = tmp_path / "jobs/bare/worker-5"
    (broken / rank_files.RANK_FILE).unlink()
    (linked / rank_files.RANK_FILE).rename(linked / "elsewhere.json")
    (linked / rank_files.RANK_FILE).symlink_to("elsewhere.json")  # links are not followed
    done = subprocess.run(
        [sys.executable, "-m", "train.host.supervisor", *map(str, (missing, linked, broken))]
        + [str(rank_dir) for rank_dir in working],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    problems = json.loads(done.stdout)
    assert {*problems} == {str(missing), str(linked), str(broken)}
    assert "No such file" in problems[str(missing)]
    assert "symbolic links" in problems[str(linked)]
    assert "rank.json does not exist" in problems[str(broken)]
    assert (done.returncode, done.stderr) == (1, "")
    for rank_dir in working:
        assert bare_ranks.end(rank_dir)["phase"] == records.COMPLETED
        assert (rank_dir / rank_files.LOG_FILE).read_text() == f"{rank_dir}\n"
