"""The output of ``playbooks/setup.yml``, from its callback plugin with the tests' own plays."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import REPOSITORY, environment, run

PLUGIN = Path("plugins/callback/setup_output.py")
LONG = "https://example.org/" + 70 * "x"
#: Each kind of task and of end, for three hosts. `who` is the host's name.
TASKS: list[dict[str, Any]] = [
    {"name": "Look", "command": "true", "changed_when": False},
    {"name": "Leave out", "command": "true", "when": "who == 'nobody'"},
    {"name": "Install packages", "command": "true"},
    {"name": "Change one", "command": "true", "changed_when": "who == 'node-10'"},
    {"name": "Change one item", "command": "true", "loop": [1, 2]},
    {
        "name": "Say",
        "debug": {"msg": "40 MB to download, and then some more that takes another line."},
    },
    {"name": "Say by item", "debug": {"msg": "item {{ item }}"}, "loop": [1, 2]},
    {
        "block": [
            {
                "name": "Try again",
                "command": "false",
                "retries": 1,
                "delay": 0,
                "until": False,
                "register": "tried",
            }
        ],
        "rescue": [{"name": "Repair", "command": "true"}],
    },
    {
        "name": "Take long",
        "command": "sleep {{ 2 if who == 'node-9' else 0 }}",
        "changed_when": False,
    },
    {
        "name": "Require more",
        "assert": {"that": "who == 'node-1'", "fail_msg": f"Too little of it; see {LONG}."},
    },
]
FINALLY = {"name": "Say what comes next", "debug": {"msg": ["Next:", "  train run"]}, "run_once": 1}


def setup(folder: Path, *options: str, name: str = "setup.yml") -> subprocess.CompletedProcess[str]:
    """Run the tasks as a playbook of a repository in a folder, with shorter intervals."""
    command, env = setup_command(folder, name)
    return run(*command, *options, cwd=folder, env=env)


def setup_command(folder: Path, name: str = "setup.yml") -> tuple[list[str], dict[str, str]]:
    """Write the repository, and return the command that runs its playbook with the environment."""
    source = (REPOSITORY / PLUGIN).read_text("utf-8")
    short = source.replace("QUIET_S, POLL_S = 15.0, 1.0", "QUIET_S, POLL_S = 0.5, 0.1")
    assert short != source
    plugin = folder / PLUGIN
    plugin.parent.mkdir(parents=True)
    plugin.write_text(short, "utf-8")
    (folder / "playbooks").mkdir()
    # The configuration names an inventory plugin of the collection.
    (folder / "playbooks/collections").symlink_to(REPOSITORY / "playbooks/collections")
    (folder / "ansible.cfg").write_text((REPOSITORY / "ansible.cfg").read_text("utf-8"))
    interpreter = {"ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    variables = {"who": "{{ inventory_hostname }}", **interpreter}
    play = {"hosts": "all", "gather_facts": False, "vars": variables}
    plays = [
        {"name": "Prepare the hosts", **play, "tasks": TASKS},
        {"name": "Nobody's play", **play, "hosts": "nobody", "tasks": TASKS},
        {"name": "Report", **play, "tasks": [FINALLY]},
    ]
    (folder / "playbooks" / name).write_text(json.dumps(plays), "utf-8")
    # Escape sequences of colors would count as letters.
    env = {
        **environment(),
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
        "PYTHONPATH": str(REPOSITORY),
        "ANSIBLE_NOCOLOR": "1",
    }
    command = ["ansible-playbook", "-i", "node-1,node-9,node-10,", "-c", "local"]
    return [*command, f"playbooks/{name}"], env


def test_a_reader_of_a_pipe_sees_at_once_what_is_still_running(tmp_path: Path) -> None:
    command, env = setup_command(tmp_path)
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    ) as done:
        assert done.stdout is not None
        first = next(line for line in done.stdout if "Take long (" in line)
        # The step lasts two seconds, and a line appears every half second.
        assert "(1 s)" in first or "(0 s)" in first
        assert done.poll() is None
        done.stdout.read()


def test_a_step_is_a_line_and_failures_are_complete(tmp_path: Path) -> None:
    done = setup(tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    alive = [line for line in lines if "still running" in line]
    slow = re.compile(r"  still running on node-9: Take long \(\d+ s\)")
    assert len([line for line in alive if slow.fullmatch(line)]) >= 2, done.stdout
    # On a busy machine, any step may take long.
    steps = [re.sub(r" \(\d+ s\)$", "", line) for line in lines if line not in alive]
    assert steps == [
        "Prepare the hosts",
        "  Install packages: changed on node-1, node-9 and node-10",
        "  Change one: changed on node-10",
        "  Change one item: changed on node-1, node-9 and node-10",
        "  node-1, node-9 and node-10: 40 MB to download, and then some more that takes",
        "  another line.",
        "  node-1, node-9 and node-10: item 1",
        "  node-1, node-9 and node-10: item 2",
        "  Repair: changed on node-1, node-9 and node-10",
        "  FAILED node-9 and node-10: Require more",
        "    Too little of it; see",
        f"    {LONG}.",
        "Report",
        "PLAY RECAP",
        "node-1 : ok=10 changed=3 unreachable=0 failed=0",
        "node-10 : ok=8 changed=4 unreachable=0 failed=1",
        "node-9 : ok=8 changed=3 unreachable=0 failed=1",
        "  Next:",
        "    train run",
    ]


@pytest.mark.soak
@pytest.mark.parametrize(("options", "name"), [(["-v"], "setup.yml"), ([], "other.yml")])
def test_with_v_and_elsewhere_ansibles_own_output_is_complete(
    tmp_path: Path, options: list[str], name: str
) -> None:
    shown = setup(tmp_path, *options, name=name).stdout
    for part in (
        "PLAY [Prepare the hosts] ***",
        "TASK [Look] ***",
        "ok: [node-1]",
        "skipping: [node-1]",
        "FAILED - RETRYING: [node-1]: Try again",
        "skipping: no hosts matched",
        "node-9                     : ok=8    changed=3    unreachable=0    failed=1",
    ):
        assert part in shown
