"""Processes of a host, as /proc lists them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.host.conftest import SLEEP, Starter, run
from train.host import processes


def test_a_pid_that_another_process_has_now_is_not_taken_for_the_first(start: Starter) -> None:
    child = start()
    began = processes.start_time(child.pid)
    assert began is not None
    assert processes.is_alive(child.pid, began)
    assert not processes.is_alive(child.pid, began - 1)
    assert not processes.is_alive(child.pid, None)
    assert not processes.is_alive(None, began)


def test_a_process_that_has_ended_but_was_not_waited_for_counts_as_ended(start: Starter) -> None:
    child = start()
    began = processes.start_time(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert processes.stat(child.pid)[0] == "Z"
    assert not processes.is_alive(child.pid, began)
    assert child.pid not in processes.snapshot()
    assert (processes.command(child.pid), processes.environment(child.pid)) == ("", {})


def test_a_name_with_brackets_and_spaces_hides_no_field(tmp_path: Path) -> None:
    program = tmp_path / "a) Z 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as child:
        processes.wait_until(lambda: processes.command(child.pid).endswith(" 60"), 10, 0.01)
        assert processes.snapshot()[child.pid].parent == os.getpid()
        child.kill()


def test_processes_are_found_by_a_variable_and_read_with_their_values(start: Starter) -> None:
    name = f"TEST_{os.urandom(8).hex()}"
    child = start(**{name: "a=b c", "OTHER": ""})
    assert processes.marked(name) == [(child.pid, "a=b c")]
    assert processes.environment(child.pid)["OTHER"] == ""
    assert processes.command(child.pid) == " ".join(SLEEP)


def test_all_generations_are_descendants_but_no_siblings() -> None:
    of = {pid: processes.Process(parent, 1, 1) for pid, parent in ((2, 1), (3, 2), (4, 3), (5, 1))}
    assert processes.descendants([2], of) == {3, 4}
    assert processes.descendants([1], of) == {2, 3, 4, 5}
    of[2] = processes.Process(4, 1, 1)  # pids that were reused while /proc was read
    assert processes.descendants([2], of) == {3, 4}


#: Leaves a process in another session behind whose parent has ended, and ends its descendants.
LEAVE = """
import json, os, subprocess
from train.host import processes

processes.adopt()
child = "sleep 60 >/dev/null & echo $!"
pid = int(subprocess.run(["setsid", "sh", "-c", child], stdout=-1).stdout)
alive = processes.start_time(pid) is not None
parent = processes.snapshot()[pid].parent
left = processes.end_descendants()
print(json.dumps([alive, parent == os.getpid(), left, processes.start_time(pid)]))
"""


def test_what_lost_its_parent_is_adopted_and_ended() -> None:
    done = run(LEAVE, stdout=subprocess.PIPE)
    assert json.loads(done.stdout) == [True, True, [], None]


def test_a_child_ends_with_its_parent() -> None:
    code = (
        "import os, signal, subprocess\n"
        "from train.host import processes\n"
        "end = processes.ending_with_parent(signal.SIGKILL)\n"
        "child = subprocess.Popen(['sleep', '60'], stdout=-3, preexec_fn=end)\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = run(code, stdout=subprocess.PIPE)
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    assert processes.wait_until(lambda: processes.start_time(pid) is None, 10, 0.01)


def test_a_signal_to_a_process_that_is_gone_is_no_error(start: Starter) -> None:
    child = start()
    child.kill()
    child.wait()
    processes.send(child.pid, signal.SIGTERM)
    processes.send(child.pid, signal.SIGTERM, group=True)


def test_without_a_child_nothing_can_be_reaped() -> None:
    code = "from train.host import processes\nprocesses.reap()"
    assert b"ChildProcessError" in run(code, stderr=subprocess.PIPE).stderr


def test_a_host_is_the_same_after_a_restart_and_in_another_network_namespace() -> None:
    boot, name, _ = processes.machine().split("/")
    assert boot == processes.boot_id()
    assert processes.is_of_this_host(f"other-boot/{name}/net:[1]")
    assert not processes.is_of_this_host(f"{boot}/{name}x/net:[1]")
    assert not processes.is_of_this_host("")


def test_the_control_groups_of_a_process_from_the_inside_out(tmp_path: Path) -> None:
    def groups(listed: str) -> list[list[str]]:
        found = processes.control_groups(listed, "memory", str(tmp_path))
        return [[os.path.relpath(group, tmp_path) for group in tree] for tree in found]

    assert groups("0::/a/b\n")[0] == ["a/b", "a", "."]
    assert groups("5:cpu:/c\n4:memory:/c\n")[-1] == ["memory/c", "memory"]
    assert not any("cpu/c" in tree for tree in groups("5:cpu:/c\n"))
    # A path out of the tree, as in a container that was moved, stays in it.
    assert groups("0::/../../etc\n")[0] == ["etc", "."]


def test_files_that_cannot_be_read_are_empty(tmp_path: Path) -> None:
    assert processes.read_text(str(tmp_path), "none") == ""
    assert processes.numbers(str(tmp_path), "none") == []
    (tmp_path / "bytes").write_bytes(b"a\xff")
    assert processes.read_text(str(tmp_path), "bytes") == "a\ufffd"


def test_a_wait_ends_with_its_condition_or_its_limit() -> None:
    answers = iter([0, "", "yes", pytest.fail])
    assert processes.wait_until(lambda: next(answers), 10, 0.0)
    assert next(answers) is pytest.fail, "it is not asked again"
    assert not processes.wait_until(lambda: False, 0.0, 0.0)


def test_a_program_gets_no_input_and_its_output_is_returned() -> None:
    done = processes.run([sys.executable, "-S", "-c", "print(input())"])
    assert (done.returncode, done.stdout) == (1, "")
    assert "EOFError" in done.stderr
