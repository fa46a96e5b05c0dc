"""Every suggested command is extracted from a message and run."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.jobs import PLAIN, plain, train, training
from tests.support.lab import REPOSITORY, Lab, Labs, environment, pasted, playbook_command, run
from train.cli import tracking
from train.gang import login_failures, suggestions
from train.gang.errors import UserError
from train.gang.suggestions import Call
from train.host import suggested
from train.host.suggested import HOST, SUGGESTIONS, suggest

_PROGRAMS = (
    r"ansible-playbook (?:$|-|\S*\.yml)",
    r"ansible \S+ -",
    r"python3? -m (?:train|pip) ",
    r"ssh (?:$|-|\S*[@\d])",
    r"make [a-z-]+`",
    r"(?:playbooks/)?\w+\.yml (?:-|first\b|again\b)",
    r"train (?:attach|clean|doctor|list|logs|report|restart|run|status|stop)\b",
)
#: A command of the control node, at the beginning of a text, in backticks or after certain words.
COMMAND = re.compile(
    rf"(?:^\s*|[`;:|(] ?|\b(?:run|then|with|try) )(?:\S*/)?(?:{'|'.join(_PROGRAMS)})"
)
#: Keys of YAML files whose values are commands for Ansible.
_NOT_PRINTED = ("validate", "cmd", "argv")


def suggested_in(text: str, name: str) -> str:
    """Return the command in a text that matches a suggestion."""
    word = SUGGESTIONS[name].usage.split()[0]
    found = [part for part in re.findall(r"`([^`]+)`", text) if f" {word}" in part]
    assert found, text
    assert not suggested.MARKER.search(text)
    return str(found[0])


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a file that users may see, with their line numbers."""
    return _of_python(path) if path.suffix == ".py" else _of_yaml(path)


def _of_python(path: Path) -> Iterator[tuple[int, str]]:
    tree = ast.parse(path.read_text())
    documentation = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in documentation:
            yield node.lineno, str(node.value)


def _of_yaml(path: Path) -> Iterator[tuple[int, str]]:
    waiting = list(yaml.compose_all(path.read_text(), yaml.BaseLoader))
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.ScalarNode):
            yield node.start_mark.line + 1, node.value
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            waiting += [value for key, value in node.value if key.value not in _NOT_PRINTED]


def test_no_other_text_has_a_command_of_the_control_node() -> None:
    places = [("train", "py"), ("bench", "py"), ("roles", "py"), ("roles", "yml")]
    places += [("playbooks", "yml"), ("playbooks", "py")]
    files = [path for room, kind in places for path in (REPOSITORY / room).rglob(f"*.{kind}")]
    assert len(files) > 200
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}: {text}"
        for path in files
        if path.name != "argument_specs.yml"
        for line, text in texts(path)
        if COMMAND.search(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "run `ansible-playbook playbooks/setup.yml` first",
        "ansible-playbook -i x y.yml",
        "try `.venv/bin/python -m train stop `",
        "python -m train list",
        "`train attach night-1`",
        "ssh node-1 uptime",
        "log in with `ssh node-1`",
        "install it with python -m pip install x",
        "run `make setup` first",
        "run playbooks/setup.yml first",
        "run setup.yml --tags firewall",
    ],
)
def test_the_search_finds_commands(text: str) -> None:
    assert COMMAND.search(text)


def test_an_unknown_job_leads_to_the_list(local_lab: Labs) -> None:
    lab = local_lab()
    unnamed = train(*lab.words("stop")).stderr
    unknown = train(*lab.words("status", "night-1")).stderr
    (listed,) = {suggested_in(text, "list") for text in (unnamed, unknown)}
    done = pasted(listed)
    assert (done.returncode, done.stdout) == (0, "no jobs\n"), done.stderr


@pytest.mark.soak
def test_a_job_that_is_left_is_stopped_and_followed(local_lab: Labs) -> None:
    lab = local_lab()
    command = plain(lab, "left", "--steps 9000", "--on-interrupt", "leave")
    command.wait_for(training)
    taken = plain(lab, "left", "--steps 1")
    said = taken.end().result["message"] if taken.events else taken.process.communicate()[1]
    command.process.send_signal(signal.SIGINT)
    message = command.end().result["message"]
    other = Lab(lab.inventory, lab.runs_dir.with_name("elsewhere"), lab.variables)
    twice = plain(other, "left", "--steps 1").end().result["message"]
    for text in (message, twice):
        assert " -i " in suggested_in(text, "stop"), text
    done = pasted(suggested_in(message, "stop"))
    assert done.returncode == 0, done.stderr
    assert "running -> stopped" in done.stdout
    assert pasted(suggested_in(twice, "stop")).returncode == 0
    assert " attach " in suggested_in(said, "attach")
    for attach in {suggested_in(text, "attach") for text in (message, twice, said)}:
        followed = pasted(attach)
        assert followed.returncode == 3, followed.stderr
        assert "stopped" in followed.stdout


def test_a_job_known_by_its_name_needs_no_inventory(local_lab: Labs, tmp_path: Path) -> None:
    lab, fast = local_lab(worker=1), tmp_path / "fast"
    words = f"--steps 300 --fast {fast}"
    failed = plain(lab, "named", words, train_job_max_runtime=2).end().result["message"]
    assert " -i " in suggested_in(failed, "restart")
    again = train("attach", "named", "-e", f"train_job_runs_dir={lab.runs_dir}").stdout
    restart = suggested_in(again, "restart")
    assert " -i " not in restart
    fast.touch()
    done = pasted(restart)
    assert done.returncode == 0, done.stdout + done.stderr
    assert lab.saved("named")["attempts"] == 2


def test_setup_is_run_for_the_hosts_of_the_call(local_lab: Labs) -> None:
    lab = local_lab()
    said = plain(lab, "bare", train_job_python="/nowhere/python").end().result["message"]
    command = suggested_in(said, "setup")
    assert f"-i {lab.inventory}" in command
    done = pasted(command, "--list-tasks", "--list-hosts")
    assert done.returncode == 0, done.stderr + command
    assert "worker1" in done.stdout
    assert "tensorflow : Install" in done.stdout
    given = lab.given({"train_job_script": str(PLAIN), "train_job_python": "/nowhere/python"})
    by_hand = run(*playbook_command("train.yml", lab.inventory, given, "--user", "anna")).stdout
    direct = suggested_in(" ".join(by_hand.split()), "setup")
    assert "--user=anna" in direct
    assert pasted(direct, "--syntax-check").returncode == 0


BARE = {**environment(), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}


@pytest.mark.parametrize(
    ("program", "folder", "expected"),
    [
        (".venv/bin/python -m train", REPOSITORY, ".venv/bin/python -m train list"),
        (f"{REPOSITORY}/train/cli/train", Path("/"), f"{REPOSITORY}/.venv/bin/train list"),
    ],
)
def test_a_command_is_called_as_this_one_was(program: str, folder: Path, expected: str) -> None:
    if not (REPOSITORY / ".venv/bin/train").exists():
        pytest.skip("make links this environment")
    done = subprocess.run(
        f"{program} stop", shell=True, cwd=folder, env=BARE, stderr=subprocess.PIPE, text=True
    )
    assert suggested_in(done.stderr, "list") == expected
    shown = subprocess.run(f"{expected} --help", shell=True, cwd=folder, env=BARE)
    assert shown.returncode == 0


def test_a_playbook_that_is_suggested_elsewhere_finds_its_settings(tmp_path: Path) -> None:
    made = "from train.gang import suggestions; print(suggestions.command('setup'))"
    path = {**BARE, "PYTHONPATH": str(REPOSITORY)}
    printed = run(sys.executable, "-c", made, cwd=tmp_path, env=path).stdout.strip()
    assert printed.startswith(f"cd {REPOSITORY} && ")
    done = subprocess.run(
        f"{printed} --syntax-check", shell=True, cwd=tmp_path, env=BARE, capture_output=True
    )
    assert done.returncode == 0, done.stderr


#: Values for the fields of commands on hosts, except folders and processes.
VALUES = {"index": "0", "watts": "250", "size": "1472", "address": "127.0.0.1"}
#: Programs that would change this machine, or wait for another machine.
STUBS = ("iperf3", "nvidia-smi", "sudo")
ON_HOSTS = [name for name, suggestion in SUGGESTIONS.items() if suggestion.program == HOST]


@pytest.mark.parametrize("name", ON_HOSTS)
def test_commands_for_hosts_are_run(name: str, tmp_path: Path) -> None:
    sleeper = subprocess.Popen(["sleep", "600"])
    folder = tmp_path / "it's a folder; exit 3"
    folder.mkdir()
    (folder / "data").touch()
    fields = {**VALUES, "folder": str(folder), "pids": str(sleeper.pid)}
    fields = {key: v for key, v in fields.items() if f"{{{key}}}" in SUGGESTIONS[name].usage}
    reach = {"here": {"ansible_connection": "local"}}
    line = suggestions.filled(suggest(name, on="here", **fields), reach)
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    program = line.split()[0]
    is_real = program not in STUBS and shutil.which(program) is not None
    if not is_real:
        (stubs / program).write_text('#!/bin/sh\nfor word; do printf "<%s>" "$word"; done\n')
        (stubs / program).chmod(0o700)
    path = f"{stubs}:{environment()['PATH']}"
    try:
        done = subprocess.run(
            line, shell=True, env={**environment(), "PATH": path}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        if not is_real:
            assert done.stdout == "".join(f"<{word}>" for word in shlex.split(line)[1:])
        if name == "kill":
            assert sleeper.wait(5) == -signal.SIGTERM
    finally:
        sleeper.kill()


def test_commands_for_the_keys_of_logins_are_run(tmp_path: Path) -> None:
    key, known = tmp_path / "my key", tmp_path / ".ssh/known_hosts"
    assert run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)).returncode == 0
    key.chmod(0o644)
    known.parent.mkdir()
    public = key.with_suffix(".pub").read_text()
    known.write_text(f"[192.0.2.1]:2222 {public}192.0.2.2 {public}")
    host_vars = {
        "ansible_host": "192.0.2.1",
        "ansible_port": 2222,
        "ansible_ssh_private_key_file": str(key),
    }
    home = {**environment(), "HOME": str(tmp_path)}
    for kind, begin in (
        ("key-permissions", "chmod"),
        ("key-unusable", "ssh-keygen -y"),
        ("key-passphrase", "ssh-add"),
        ("changed-key", "ssh-keygen -R"),
    ):
        remedy = login_failures.failure(kind, host_vars).remedy
        (line,) = (part for part in re.findall(r"`([^`]+)`", remedy) if part.startswith(begin))
        line = line.replace("ssh-keygen -R", f"ssh-keygen -f {shlex.quote(str(known))} -R")
        agent = f"eval $(ssh-agent) && {line}; code=$?; ssh-agent -k; exit $code"
        done = subprocess.run(
            agent if begin == "ssh-add" else line,
            shell=True,
            env=home,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
    assert key.stat().st_mode & 0o777 == 0o600
    assert "2222" not in known.read_text()
    assert "192.0.2.2" in known.read_text()


def test_the_installation_of_mlflow_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError) as refused:
        tracking.check("sqlite:///mlflow.db")
    (command,) = re.findall(r"`([^`]+)`", str(refused.value))
    lock = Path(shlex.split(command)[-1])
    assert "--hash=sha256:" in lock.read_text()
    assert "--require-hashes" in pasted(command, "--help").stdout


def test_the_doctor_and_clean_are_run() -> None:
    call = Call(
        suggestions.train_program(), suggestions.playbook_program(), ("-i", "inventory/local")
    )
    (REPOSITORY / "runs").mkdir(exist_ok=True)
    cleaned = pasted(suggestions.command("clean", call, age="9999d"), "--dry-run")
    assert cleaned.returncode == 0, cleaned.stderr
    assert "localhost-0: nothing to remove" in cleaned.stdout
    examined = pasted(suggestions.command("doctor", call), "--only", "alike", "--json")
    assert examined.returncode == 0, examined.stderr
    assert set(json.loads(examined.stdout)["checkups"]) == {"localhost-0", "localhost-1"}


def test_playbooks_print_commands(tmp_path: Path) -> None:
    play = {"hosts": "localhost", "gather_facts": False, "tasks": [{"debug": {"msg": SAID}}]}
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    options = ["--user", "anna", "-e", "ansible_connection=local"]
    hosts = Path("localhost,")
    said = run(*playbook_command(str(tmp_path / "play.yml"), hosts, {}, *options)).stdout
    command = suggested_in(" ".join(said.split()), "run")
    assert command.endswith("-m train run -i localhost, --user=anna -e ansible_connection=local"), (
        command
    )
    assert pasted(command, "--help").returncode == 0
    setup = suggested_in(" ".join(said.split()), "setup")
    assert setup.endswith("playbooks/setup.yml --tags firewall")
    assert pasted(setup, "--syntax-check").returncode == 0


FILTER = "tensorflow_ansible.cluster.suggested_command"
SAID = f"`{{{{ 'run' | {FILTER} }}}}` `{{{{ 'setup' | {FILTER}(tags='firewall') }}}}`"


def test_every_command_has_a_test() -> None:
    tests = {
        "run": test_playbooks_print_commands,
        "attach": test_a_job_that_is_left_is_stopped_and_followed,
        "clean": test_the_doctor_and_clean_are_run,
        "doctor": test_the_doctor_and_clean_are_run,
        "list": test_an_unknown_job_leads_to_the_list,
        "restart": test_a_job_known_by_its_name_needs_no_inventory,
        "setup": test_setup_is_run_for_the_hosts_of_the_call,
        "stop": test_a_job_that_is_left_is_stopped_and_followed,
    }
    assert {*tests, *ON_HOSTS} == set(SUGGESTIONS)
