"""Tests train/gang/ansible_core.py under the oldest and the newest supported ansible-core.

Python 3.11 cannot run a newer ansible-core than the oldest one, so the newest is installed in a
separate environment under another Python, if this machine has one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from tests.support.lab import REPOSITORY, environment, free_port, free_ports, once, run

OLDEST, NEWEST = "2.19", "2.21"
ACTION = "tensorflow_ansible.cluster.gang_start"


def newer_python() -> str | None:
    """Return an interpreter of Python 3.12 or 3.13, or None if this machine has none."""
    found = [path for name in ("python3.13", "python3.12") if (path := shutil.which(name))]
    found += map(str, sorted(Path("~/.pyenv/versions").expanduser().glob("3.1[23].*/bin/python3")))
    for path in found:
        tried = subprocess.run([path, "-c", "import venv"], capture_output=True, check=False)
        if tried.returncode == 0:
            return path
    return None


@pytest.fixture(scope="module", params=[OLDEST, NEWEST])
def python(request: pytest.FixtureRequest, shared: Path) -> str:
    """Return the interpreter of an environment with this ansible-core."""
    if request.param == OLDEST:
        return sys.executable
    newer = newer_python()
    if newer is None:
        pytest.skip("no Python 3.12 or 3.13, which the newest ansible-core needs")

    def install() -> str:
        folder, uv = shared / "newest-core", find_uv_bin()
        run(uv, "venv", "--quiet", "--python", newer, str(folder)).check_returncode()
        made = str(folder / "bin/python")
        wanted = f"ansible-core=={NEWEST}.*"
        done = run(uv, "pip", "install", "--quiet", "--python", made, wanted, stderr=-2)
        assert done.returncode == 0, done.stdout
        return made

    return once(shared, "core", install)


def play(python: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = str(Path(python).with_name("ansible-playbook"))
    env = {**environment(), "PATH": f"{Path(python).parent}:{environment()['PATH']}"}
    return run(program, *words, stderr=subprocess.STDOUT, env=env, timeout=120)


def test_it_is_the_version_that_is_meant(python: str, request: pytest.FixtureRequest) -> None:
    program = "from ansible.release import __version__; print(__version__)"
    wanted = request.node.callspec.params["python"]
    assert run(python, "-c", program).stdout.startswith(f"{wanted}.")


def test_the_documented_options_are_checked(python: str, tmp_path: Path) -> None:
    tasks = [{ACTION: {"hosts": [], "rank": 1}}]
    play_file = tmp_path / "play.yml"
    play_file.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    done = play(python, "-i", "localhost,", "-c", "local", str(play_file))
    assert done.returncode == 2
    said = " ".join(done.stdout.split())
    assert "gang_start: missing required arguments: beside, registered; has no option rank." in said
    assert "include: beside, hosts, registered." in said


def test_the_plugin_ssh_is_used(python: str) -> None:
    program = (
        "import train.gang.connections\n"
        "from ansible.plugins.loader import connection_loader as loader\n"
        "print(loader.find_plugin('ssh'))"
    )
    found = run(python, "-c", program, cwd=REPOSITORY)
    assert Path(found.stdout.strip()) == REPOSITORY / "plugins/connection/ssh.py"


def test_templates_of_each_host_are_compiled_once(python: str) -> None:
    program = (
        "import train.gang.connections\n"
        "from ansible._internal._templating._jinja_bits import AnsibleEnvironment\n"
        "import jinja2\n"
        "def compile_again(*args, **given): raise AssertionError(args)\n"
        "jinja2.Environment.compile = compile_again\n"
        "from ansible.parsing.dataloader import DataLoader\n"
        "from ansible.template import Templar, trust_as_template\n"
        "templar = Templar(DataLoader(), {'ansible_host': 'node-1'})\n"
        "text = '{{ ansible_host | default(inventory_hostname) }}'\n"
        "print(templar.template(trust_as_template(text)))"
    )
    assert run(python, "-c", program, cwd=REPOSITORY).stdout == "node-1\n"


SCRIPT = """
import json, os
names = ("BOTH", "ALL", "HOST", "VERSION", "FILE", "LAST")
print(json.dumps({name: os.environ.get(name) for name in names}))
"""


def write_inventory(folder: Path, **of_host: Any) -> Path:
    """Write an inventory of three ranks on this machine, two of a host with more variables."""
    text = f"""
worker:
  hosts:
    w0:
      train_job_ranks: 2
      train_job_port: {free_ports(2)}
      train_job_environment: {json.dumps(of_host)}
    w1: {{train_job_port: {free_port()}}}
  vars:
    plugin: local
    ansible_connection: "{{{{ plugin }}}}"
    ansible_host: localhost
    ansible_python_interpreter: "{{{{ ansible_playbook_python }}}}"
    train_job_environment:
      BOTH: all
      ALL: "yes"
      VERSION: 1.10
    train_job_gpus: none
    train_job_max_restarts: 0
    train_job_root: {folder}/train
    train_job_lease_dir: {folder}/leases
    train_job_runs_dir: {folder}/runs
    train_job_python: {sys.executable}
    train_job_script: {folder}/main.py
"""
    (folder / "main.py").write_text(SCRIPT)
    inventory = folder / "hosts.yml"
    inventory.write_text(text)
    return inventory


def test_a_job_gets_the_values_of_all_levels_as_they_are_written(
    python: str, tmp_path: Path
) -> None:
    inventory = write_inventory(tmp_path, BOTH="host", HOST="w0")
    (tmp_path / "extra.yml").write_text("train_job_environment: {FILE: 007}\n")
    last = json.dumps({"train_job_environment": {"LAST": "1"}, "train_job_id": "levels"})
    extra = ["-e", f"@{tmp_path}/extra.yml", "-e", last]
    done = play(python, "-i", str(inventory), "playbooks/train.yml", *extra)
    assert done.returncode == 0, done.stdout[-3000:]
    seen = [
        json.loads((tmp_path / "runs/levels/logs" / f"worker-{index}.log").read_text())
        for index in range(3)
    ]
    shared = {"ALL": "yes", "VERSION": "1.10", "FILE": "007", "LAST": "1"}
    assert seen == [
        {**shared, "BOTH": "host", "HOST": "w0"},
        {**shared, "BOTH": "host", "HOST": "w0"},
        {**shared, "BOTH": "all", "HOST": None},
    ]


def test_the_place_of_a_wrong_value_is_named(python: str, tmp_path: Path) -> None:
    inventory = write_inventory(tmp_path, HOST=True)
    done = play(python, "-i", str(inventory), "playbooks/train.yml", "-e", "train_job_seed=x")
    assert done.returncode == 2
    said = " ".join(done.stdout.split())
    assert f"sets HOST to a boolean ({inventory}:7)" in said
    assert 'train_job_seed of w0, w1 is a string, "x" (-e)' in said


def test_the_variables_of_a_host_are_read_again(python: str, tmp_path: Path) -> None:
    inventory, changed, password = (tmp_path / name for name in ("hosts.yml", "new.yml", "word"))
    password.write_text("word")
    vault = str(Path(python).with_name("ansible-vault"))
    words = ("encrypt_string", "--vault-password-file", str(password), "classy")
    secret = run(vault, *words, env=environment()).stdout.replace("\n", "\n      ")
    common = (
        "{ansible_connection: local, ansible_python_interpreter: '{{ ansible_playbook_python }}'}"
    )
    inventory.write_text(
        "worker:\n"
        "  hosts:\n"
        "    w0: {seen: kept}\n"
        "    w1: {ansible_host: old, seen: '{{ ansible_host }}', secret: old}\n"
        f"  vars: {common}\n"
    )
    # The group and a host of the play are missing.
    changed.write_text(
        "all:\n"
        "  hosts:\n"
        "    w1:\n"
        "      ansible_host: new\n"
        "      seen: '{{ ansible_host }}er'\n"
        "      groups: [ps]\n"  # it has the name of an option of add_host
        f"      secret: {secret}\n"
    )
    update, add = (
        f"tensorflow_ansible.cluster.gang_{verb}" for verb in ("update_host", "add_rank")
    )
    slot = {"name": "w1-slot-1", "machine": "w1", "slot": 1, "groups": []}
    about = "[inventory_hostname, group_names | join, seen, secret | default('') | length]"
    of_slot = "[hostvars['w1-slot-1'].ansible_host]"
    tasks = [
        {add: {**slot, "groups": ["worker"]}, "run_once": True},
        {"command": f"cp {changed} {inventory}", "run_once": True},
        {update: {"name": "{{ item }}"}, "loop": ["w0", "w1"], "run_once": True, "no_log": True},
        {add: slot, "run_once": True},
        {"debug": {"msg": f"{{{{ ({about} + {of_slot}) | join(' ') }}}}"}},
    ]
    play_file = tmp_path / "play.yml"
    play_file.write_text(json.dumps([{"hosts": "worker", "gather_facts": False, "tasks": tasks}]))
    options = ("--vault-password-file", str(password), "-v")
    done = play(python, "-i", str(inventory), *options, str(play_file))
    assert done.returncode == 0, done.stdout
    assert "w0 worker kept 0 new" in done.stdout
    assert "w1 worker newer 6 new" in done.stdout
    assert "classy" not in done.stdout
