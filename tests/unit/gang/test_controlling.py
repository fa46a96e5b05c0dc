"""What a host of the cluster gets to watch a job: an inventory without templates, and files."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible import constants

from train.gang import controlling
from train.gang.errors import UserError
from train.gang.plan.script_files import WORKER
from train.gang.variables import job_variables

HOSTS = ("w0", "w1")
GROUPS = {"chief": [], "worker": [*HOSTS], "ps": [], "evaluator": [], "spare": []}


class _Loader(yaml.SafeLoader):
    """Reads an inventory; texts that are not templates are marked."""


_Loader.add_constructor("!unsafe", lambda loader, node: {"unsafe": node.value})


def a_play(
    values: Mapping[str, Any] | None = None,
    others: Mapping[str, Any] | None = None,
    connections: Mapping[str, tuple[str, str]] | None = None,
    environment: Mapping[str, str] | None = None,
    defaults: tuple[str, ...] = (),
) -> Any:
    """Return a play whose hosts have variables of the role, and others."""

    def given(host: str, names: Any) -> job_variables.Given:
        found = {"train_job_args": [], **(values or {})}
        places = {
            name: job_variables.DEFAULT if name in defaults else "hosts.yml:1" for name in found
        }
        return job_variables.Given(list(found), found, places, (dict(environment or {}), []), [])

    def of_host(host: str, *names: str) -> dict[str, Any]:
        every = {"train_job_root": "~/train", "ansible_host": f"10.0.0.{host[1]}", **(others or {})}
        return {name: every[name] for name in names if name in every}

    def connection(host: str) -> tuple[str, str, str, str]:
        return (*(connections or {}).get(host, ("", f"10.0.0.{host[1]}")), "", "")

    return SimpleNamespace(
        hosts=list(HOSTS), given=given, values=of_host, connection=connection, check_mode=False
    )


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(folder))
    return folder


def prepare(play: Any, **changed: Any) -> dict[str, Any]:
    args: dict[str, Any] = {"controller": "chief", "groups": GROUPS, "command": "run"}
    args |= {"job": "night", "script": str(WORKER), "module": "", "include": []}
    args |= {"exclude": [], "requirements": "", "code_limit_mb": 100.0}
    return dict(controlling.prepare(play, {**args, **changed}))


def inventory_of(prepared: Mapping[str, Any]) -> dict[str, Any]:
    path = Path(prepared["inventory"])
    assert path.stat().st_mode & 0o777 == 0o600
    loaded: dict[str, Any] = yaml.load(path.read_text(), _Loader)["all"]
    return loaded


def test_values_stay_data_and_only_variables_of_jobs_are_there() -> None:
    play = a_play(
        {
            "train_job_args": ["--text", "{{ lookup('pipe', 'id') }}"],
            "train_job_notify_command": "echo {% raw %}",
            "train_job_grace": 20,
            "train_job_hang_factor": 5,
            "train_job_runs_dir": "/home/me/runs",
            "train_job_script": "/home/me/main.py",
        },
        {
            "ansible_user": "train",
            "ansible_port": 2222,
            "ansible_password": "secret",
            "ansible_ssh_private_key_file": "/home/me/key",
            "ansible_ssh_common_args": "-J jump",
            "tensorflow_index_url": "https://packages.example.org",
        },
        environment={"TOKEN": "a{{b", "PLAIN": "yes"},
        defaults=("train_job_hang_factor",),
    )
    prepared = prepare(play)
    assert prepared["host"] == "w0"
    hosts = inventory_of(prepared)["hosts"]
    common = {
        "train_job_args": ["--text", {"unsafe": "{{ lookup('pipe', 'id') }}"}],
        "train_job_notify_command": {"unsafe": "echo {% raw %}"},
        "train_job_grace": 20,
        "train_job_environment": {"TOKEN": {"unsafe": "a{{b"}, "PLAIN": "yes"},
        "ansible_user": "train",
        "tensorflow_index_url": "https://packages.example.org",
    }
    assert hosts["w1"] == {**common, "ansible_host": "10.0.0.1", "ansible_port": 2222}
    assert hosts["w0"] == {**common, "ansible_host": "10.0.0.0", "ansible_connection": "local"}


def test_the_groups_are_those_of_the_job() -> None:
    assert inventory_of(prepare(a_play()))["children"] == {
        "worker": {"hosts": {"w0": None, "w1": None}}
    }


def test_the_port_for_other_hosts_is_preferred() -> None:
    play = a_play(others={"ansible_port": 2222, "ssh_keys_port": 22})
    assert inventory_of(prepare(play))["hosts"]["w1"]["ansible_port"] == 22


@pytest.mark.parametrize(
    ("connections", "controller", "message"),
    [
        ({}, "w7", "--on w7: .* choose one of w0, w1"),
        ({"w0": ("local", "")}, "w0", "the machine on which you are working.*--detach"),
        ({"w1": ("ansible.builtin.local", "")}, "w0", "w1 has the connection local"),
        ({"w1": ("community.docker.docker", "w1")}, "w0", "w1 has the connection docker"),
        ({"w1": ("ssh", "127.0.0.1")}, "w0", "the address of w1, 127.0.0.1, leads to a different"),
    ],
)
def test_a_host_that_cannot_watch_is_rejected(
    connections: dict[str, tuple[str, str]], controller: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        prepare(a_play(connections=connections), controller=controller)


def test_the_script_is_packed_with_what_it_includes(tmp_path: Path) -> None:
    script, data = tmp_path / "own/main.py", tmp_path / "data.csv"
    script.parent.mkdir()
    script.write_text("print(1)\n")
    (script.parent / "draft.txt").write_text("")
    (script.parent / "more.in").write_text("attrs<99\n")
    (script.parent / "requirements.txt").write_text(
        "--index-url https://a.example\n-c more.in\nattrs\n"
    )
    data.write_text("1\n")
    prepared = prepare(
        a_play(),
        script=str(script),
        include=[str(data)],
        exclude=["draft.txt"],
        requirements="auto",
    )
    with tarfile.open(prepared["code"]) as archive:
        names = set(archive.getnames())
    assert names == {
        *("code/main.py", "code/data.csv", "code/requirements.txt", "code/more.in"),
    }
    assert prepared["words"] == [
        *("--script", "code/main.py", "--requirements", "requirements.txt")
    ]
    texts = {name: Path(path).read_text() for name, path in prepared["requirements"].items()}
    assert texts == {
        "requirements.txt": "--index-url https://a.example\n-c constraints.txt\nattrs\n",
        "constraints.txt": "attrs<99\n",
    }


def test_wheels_of_this_machine_cannot_be_used_there(tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text("attrs\n")
    play = a_play(others={"tensorflow_wheelhouse_source": "/wheels"})
    with pytest.raises(UserError, match="tensorflow_wheelhouse_source is /wheels"):
        prepare(play, requirements=str(path))


def test_other_commands_send_no_script() -> None:
    prepared = prepare(a_play(), command="attach", script="/nothing.py")
    assert (prepared["code"], prepared["words"]) == ("", [])


def test_the_project_is_packed_as_it_is_installed(temporary: Path) -> None:
    first = prepare(a_play())
    data = Path(first["project"]).read_bytes()
    with tarfile.open(first["project"]) as archive:
        names = set(archive.getnames())
    inside = "ansible_collections/tensorflow_ansible/cluster"
    assert {"train/__main__.py", f"{inside}/ansible.cfg", f"{inside}/playbooks/train.yml"} <= names
    assert f"{inside}/roles/train_job/templates/tf_config.json.j2" in names
    assert not [name for name in names if "__pycache__" in name or "playbooks/collections" in name]
    second = prepare(a_play())
    assert (second["version"], Path(second["project"]).read_bytes()) == (first["version"], data)


def test_a_host_that_watches_cannot_replace_hosts() -> None:
    with pytest.raises(UserError, match=r"--on w0: train_job_replace is set, but w0 has neither"):
        prepare(a_play({"train_job_replace": "terraform apply"}))
    assert prepare(a_play({"train_job_replace": ""}))["host"] == "w0"
