"""Suggested commands: called as the program was, quoted, and from checked markers only."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from train.gang import suggestions
from train.gang.suggestions import Call
from train.host.suggested import suggest

CALL = Call(
    train=".venv/bin/python -m train",
    playbook=".venv/bin/ansible-playbook",
    typed=("-i", "inventory/my lab", "--user=anna"),
    reaching=("-i", "inventory/my lab", "--user=anna"),
)


def test_a_command_has_the_inventory_and_the_options_of_the_call() -> None:
    assert suggestions.command("list", CALL) == (
        ".venv/bin/python -m train list -i 'inventory/my lab' --user=anna"
    )
    assert suggestions.command("setup", CALL, hosts="node-1,node-2", tags="tensorflow") == (
        ".venv/bin/ansible-playbook -i 'inventory/my lab' --user=anna playbooks/setup.yml "
        "--limit node-1,node-2 --tags tensorflow"
    )
    assert suggestions.command("setup", Call()) == "ansible-playbook playbooks/setup.yml"


def test_a_job_whose_folder_names_its_hosts_needs_no_inventory() -> None:
    call = Call(typed=(), reaching=("-i", "inventory/lab"), job="night-1")
    assert suggestions.command("stop", call, job="night-1") == "python -m train stop night-1"
    assert suggestions.command("list", call) == "python -m train list -i inventory/lab"
    other = suggestions.command("stop", call, job="night-2")
    assert other == "python -m train stop -i inventory/lab night-2"
    assert "-i inventory/lab" in suggestions.command("setup", call)


def test_an_installed_package_runs_playbooks_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggestions, "IS_PACKAGED", True)
    call = Call(train="train", typed=("-i", "my lab"), reaching=("-i", "my lab"))
    assert suggestions.command("setup", call, tags="tensorflow") == (
        "train playbook setup -i 'my lab' --tags tensorflow"
    )
    assert suggestions.command("list", call) == "train list -i 'my lab'"


def test_a_program_that_path_finds_through_a_link_is_named_without_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, links = tmp_path / "environment/bin", tmp_path / "bin"
    for folder in (own, links):
        folder.mkdir(parents=True)
    system = tmp_path / "python3"
    for program in (own / "train", system):
        program.touch(mode=0o755)
    (links / "train").symlink_to(own / "train")
    # The interpreter in PATH is the same file but does not have the environment's packages.
    for folder in (own, links):
        (folder / "python").symlink_to(system)
    monkeypatch.setattr("sys.executable", str(own / "python"))
    monkeypatch.setenv("PATH", str(links))
    assert suggestions.program("train") == "train"
    assert suggestions.program("python") == str(own / "python")
    (links / "train").unlink()
    (links / "train").touch(mode=0o755)
    assert suggestions.program("train") == str(own / "train")


def test_a_call_is_passed_on_as_text() -> None:
    assert suggestions.load(CALL.dump()) == CALL


def test_markers_are_replaced_by_commands() -> None:
    text = f"run {suggest('setup', tags='firewall')}, then {suggest('restart')}"
    assert suggestions.filled(text, call=Call(), job="night-1") == (
        "run ansible-playbook playbooks/setup.yml --tags firewall, then "
        "python -m train restart night-1"
    )
    hosts = suggest("setup", hosts="a b,<c>; rm x")
    assert shlex.split(suggestions.filled(hosts, call=Call()))[-1] == "a b,<c>; rm x"


@pytest.mark.parametrize(
    "marker",
    [
        "<suggest nothing>",
        "<suggest setup tags=$(reboot)>",
        "<suggest setup tags=a%20b>",
        "<suggest setup hosts=--become>",
        "<suggest setup job=night-1>",
        "<suggest setup variable=a%3Db%20c>",
        "<suggest stop job=..%2Fx>",
        "<suggest stop>",
        "<suggest clean age=1y>",
        "<suggest list on=node-1>",
        "<suggest kill on=node-1 pids=1;reboot>",
        "<suggest kill pids=1>",
        "<suggest uptime on=unknown>",
        "<suggest setup folder=/>",
    ],
)
def test_a_malformed_marker_stays_as_it_is(marker: str) -> None:
    reach = {"node-1": {"ansible_host": "192.0.2.1"}}
    assert suggestions.filled(marker, reach, Call()) == marker


def test_what_a_host_puts_into_a_field_is_quoted() -> None:
    marker = suggest("disk-use", on="node-1", folder="/data/$(reboot) '")
    line = suggestions.filled(marker, {"node-1": {"ansible_connection": "local"}}, Call())
    assert shlex.split(line.split(";")[0]) == ["df", "-h", "/data/$(reboot) '"]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"ansible_host": "192.0.2.1"}, "ssh 192.0.2.1 'kill 7 8'"),
        (
            {"ansible_host": "h", "ansible_user": "train", "ansible_port": 2222},
            "ssh -p 2222 train@h 'kill 7 8'",
        ),
        (
            {"ansible_host": "h", "ansible_ssh_args": "-C -o ProxyJump=gate"},
            "ssh -C -o ProxyJump=gate h 'kill 7 8'",
        ),
        ({"ansible_host": "h", "ansible_ssh_args": "-C"}, "ssh h 'kill 7 8'"),
        ({"ansible_connection": "ansible.builtin.local"}, "kill 7 8"),
        (
            {"ansible_connection": "community.docker.docker", "ansible_host": "h"},
            "ansible -i inventory/lab node-1 -m ansible.builtin.shell -a 'kill 7 8'",
        ),
    ],
)
def test_a_command_for_a_host_takes_its_connection(
    variables: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reaching = Call(reaching=("-i", "inventory/lab"))
    monkeypatch.setattr(suggestions, "current", lambda: reaching)
    marker = suggest("kill", on="node-1", pids="7 8")
    assert suggestions.filled(marker, {"node-1": variables}) == expected


def test_sudo_gets_a_terminal() -> None:
    marker = suggest("gpu-persistence", on="node-1")
    reach = {"node-1": {"ansible_host": "h"}}
    assert suggestions.filled(marker, reach, Call()) == "ssh -t h 'sudo nvidia-smi -pm 1'"


def test_of_extra_variables_only_those_of_connections_and_places_are_carried() -> None:
    given = ["ansible_user=anna", "ansible_password=secret", "@vault.yml", "train_job_port=1"]
    given += ['{"train_job_root": "/data/my train", "ansible_become_password": "secret"}', "broken"]
    assert suggestions.carried(given) == [
        *("-e", "ansible_user=anna", "-e", "@vault.yml"),
        *("-e", '{"train_job_root": "/data/my train"}'),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{ansible_user: bob}", ["-e", "ansible_user=bob"]),
        ("{ansible_port: 22, ansible_password: secret}", ["-e", "ansible_port=22"]),
        ("{ansible_user: !vault x, train_job_root: !unsafe /data}", ["-e", "train_job_root=/data"]),
        ("{ansible_user: 2024-01-01}", ["-e", "ansible_user=2024-01-01"]),
        ("{1: 2}", []),
        (
            "ansible_user=bob ansible_password=x train_job_root='/my data'",
            ["-e", "ansible_user=bob", "-e", '{"train_job_root": "/my data"}'],
        ),
        ("ansible_user=bob train_job_root='/my", []),
        ("{ansible_user", []),
    ],
)
def test_variables_may_be_yaml(text: str, expected: list[str]) -> None:
    assert suggestions.carried([text]) == expected


def test_paths_of_this_machine_are_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["train_job_runs_dir=results", "{ansible_ssh_private_key_file: key}", "@more.yml"]
    assert suggestions.carried([*given, "train_job_root=data"]) == [
        *("-e", f"train_job_runs_dir={tmp_path}/results"),
        *("-e", f"ansible_ssh_private_key_file={tmp_path}/key"),
        *("-e", f"@{tmp_path}/more.yml", "-e", "train_job_root=data"),
    ]
