"""The ranks of hosts with several, and the inventory hosts that they become."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from train.gang.errors import UnreachableError, UserError
from train.gang.job_records import MANIFEST_FILE
from train.gang.plan import machine_ranks


def a_play(
    variables: Mapping[str, dict[str, Any]],
    gpus: Mapping[str, Any] | None = None,
    machines: Mapping[str, str] | None = None,
) -> Any:
    """Return a play with the variables of its hosts. All are one machine if they are local."""

    def values(host: str, *names: str) -> dict[str, Any]:
        found = {name: variables[host][name] for name in names if name in variables[host]}
        if "{{ nope }}" in found.values():
            raise UserError(f"train_job_ranks of {host}: 'nope' is undefined")
        return found

    def run(host: str, *_: Any) -> Any:
        answer = (gpus or {})[host]
        if isinstance(answer, Exception):
            raise answer
        return answer

    here = [host for host in variables if variables[host].get("ansible_connection") == "local"]
    return SimpleNamespace(
        hosts=list(variables),
        values=values,
        run=run,
        given=lambda host, names: SimpleNamespace(places={names[0]: "hosts.yml:3"}),
        has=lambda host: host in variables,
        machine_of=lambda host: (machines or {}).get(host, host),
        groups_of=lambda host: ["lab", "ungrouped", "worker"],
        neighbors=lambda: {host: here if host in here else [host] for host in variables},
        names_of_variables=lambda host: list(variables[host]),
        add_host=lambda *added: added,
        registered=lambda host, name: variables[host].get(name) or {},
    )


def chosen(
    play: Any, groups: Any = None, starts: bool = True, job: str = "", runs_dir: str = ""
) -> tuple[list[str], list[str]]:
    """Return the names of the ranks that are added, and the warnings."""
    given = {"groups": groups or {"worker": play.hosts}, "starts": starts}
    found: Any = machine_ranks.choose(play, {**given, "job": job, "runs_dir": runs_dir})
    return [rank["name"] for rank in found["ranks"]], found["warnings"]


@pytest.mark.parametrize("number", [3, "3"])
def test_further_ranks_are_named_after_their_machine(number: Any) -> None:
    play = a_play({"a": {"train_job_ranks": number}, "b": {}})
    args = {"groups": {"worker": ["a", "b"]}, "starts": True, "job": "", "runs_dir": ""}
    assert machine_ranks.choose(play, args) == {
        "ranks": [
            {"name": "a-slot-1", "machine": "a", "slot": 1, "groups": ["lab", "worker"]},
            {"name": "a-slot-2", "machine": "a", "slot": 2, "groups": ["lab", "worker"]},
        ],
        "warnings": [],
    }


def test_ranks_that_were_added_before_are_not_added_again() -> None:
    several = {"train_job_ranks": 2}
    play = a_play({"a": several, "a-slot-1": several}, machines={"a-slot-1": "a"})
    assert chosen(play) == ([], [])


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "a whole number, 0"),
        (-1, "a whole number, -1"),
        (257, "a whole number, 257"),
        ("257", 'a string, "257"'),
        ("many", 'a string, "many"'),
        (2.5, "a number, 2.5"),
        (True, "a boolean, true"),
        (None, "null"),
        ([2], "a list, [2]"),
    ],
)
def test_an_invalid_number_is_refused_if_a_job_starts(value: Any, shown: str) -> None:
    play = a_play({"a": {"train_job_ranks": value}, "b": {"train_job_ranks": value}})
    with pytest.raises(UserError) as refused:
        chosen(play)
    assert str(refused.value) == (
        f"train_job_ranks of a, b is {shown} (hosts.yml:3), expected auto or a whole number from "
        "1 to 256: correct the value (the default is 1), or remove the variable"
    )
    assert chosen(play, starts=False) == ([], [])


def test_a_template_that_fails_is_refused_if_a_job_starts() -> None:
    play = a_play({"a": {"train_job_ranks": "{{ nope }}"}})
    with pytest.raises(UserError, match="of a: 'nope' is undefined"):
        chosen(play)
    assert chosen(play, starts=False) == ([], [])


@pytest.mark.parametrize("kind", ["chief", "ps", "evaluator"])
@pytest.mark.parametrize("value", [2, "auto"])
def test_only_workers_and_spare_hosts_have_several(kind: str, value: Any) -> None:
    play = a_play({"a": {"train_job_ranks": value}})
    with pytest.raises(UserError) as refused:
        chosen(play, {kind: ["a"]})
    assert f"train_job_ranks of a is {value} (hosts.yml:3), but a host of the group {kind} has" in (
        str(refused.value)
    )
    assert chosen(play, {kind: ["a"]}, starts=False) == ([], [])
    assert chosen(a_play({"a": {"train_job_ranks": 1}}), {kind: ["a"]}) == ([], [])


def test_a_spare_host_has_all_of_its_ranks() -> None:
    play = a_play({"a": {"train_job_ranks": 2}, "b": {"train_job_ranks": 2}})
    groups = {"worker": ["a"], "spare": ["b"]}
    assert chosen(play, groups)[0] == ["a-slot-1", "b-slot-1"]


def test_the_ports_must_exist_and_be_free_of_others_on_the_machine() -> None:
    play = a_play({"a": {"train_job_ranks": 4, "train_job_port": 65533}})
    with pytest.raises(UserError, match=r"^a has 4 ranks .* 65533 to 65536, .* at most 65532$"):
        chosen(play)
    here = {"ansible_connection": "local"}
    play = a_play(
        {
            "a": {**here, "train_job_ranks": 3},
            "b": {**here, "train_job_port": 12347},
            "e": {**here, "train_job_port": 12346},
            "c": {"train_job_port": 12346},
        }
    )
    with pytest.raises(UserError) as refused:
        chosen(play, {"worker": ["a", "b", "c"], "evaluator": ["e"]})
    assert str(refused.value) == (
        "a and b are on the same machine, and both have port 12347, because a host with several "
        "ranks (train_job_ranks) has consecutive ports from train_job_port: set another "
        "train_job_port for one of them"
    )


def test_a_name_of_another_host_is_refused() -> None:
    play = a_play({"a": {"train_job_ranks": 2}, "a-slot-1": {}})
    with pytest.raises(UserError, match=r"^a rank of a .* would be called a-slot-1, but"):
        chosen(play)


def test_auto_is_a_rank_for_each_gpu() -> None:
    auto = {"train_job_ranks": "auto"}
    play = a_play(
        {
            "eight": {**auto, "train_job_gpus": "auto"},
            "no-gpu": auto,
            "lists": {**auto, "train_job_gpus": [4, 5]},
            "hides": {**auto, "train_job_gpus": "none"},
            "lost": auto,
            "lies": auto,
        },
        {
            "eight": {"gpus": 3},
            "no-gpu": {"gpus": 0},
            "lost": UnreachableError("no route"),
            "lies": {"gpus": 100_000},
        },
    )
    names, warnings = chosen(play)
    assert names == ["eight-slot-1", "eight-slot-2", "lists-slot-1"]
    assert warnings == [
        "lost and lies did not report GPUs: one rank is assumed (train_job_ranks: auto)"
    ]


def test_a_job_that_continues_keeps_the_ranks_of_a_lost_host(tmp_path: Path) -> None:
    (tmp_path / "night").mkdir()
    manifest = {"version": 1, "results_dirs": {"lost": "worker-0", "lost-slot-2": "worker-2"}}
    (tmp_path / "night" / MANIFEST_FILE).write_text(json.dumps(manifest))
    play = a_play({"lost": {"train_job_ranks": "auto"}}, {"lost": UnreachableError("no route")})
    names = ["lost-slot-1", "lost-slot-2"]
    assert chosen(play, job="night", runs_dir=str(tmp_path)) == (names, [])
    assert chosen(play, job="other", runs_dir=str(tmp_path))[0] == []


def test_the_ranks_of_a_machine_are_numbered_together() -> None:
    machines = {"b+1": "b", "a+1": "a", "a+2": "a"}
    ordered = machine_ranks.in_order(
        ["b", "a", "c", "b+1", "a+1", "a+2"], lambda host: machines.get(host, host)
    )
    assert ordered == ["b", "b+1", "a", "a+1", "a+2", "c"]


def test_a_rank_has_its_machines_variables_without_their_values() -> None:
    fact = "x'] }}{{ lookup('pipe', 'id')"
    about: dict[str, Any] = {"ansible_host": "10.0.0.1", "ansible_password": "hunter2", fact: 1}
    play = a_play({"a": {**about, "__train_job_id": "x"}})
    args = {"name": "a-slot-1", "machine": "a", "slot": 1, "groups": ["worker"]}
    added: Any = machine_ranks.add(play, args)
    name, groups, templates, values = added
    assert (name, groups) == ("a-slot-1", ["worker"])
    assert "hunter2" not in json.dumps([templates, values])
    assert [*templates] == ["ansible_password"]
    assert values == {
        "ansible_host": "10.0.0.1",
        "__train_job_machine": "a",
        "__train_job_slot": 1,
    }
    context = {"hostvars": {"a": about}, "__train_job_machine": "a"}
    templar = Templar(loader=DataLoader(), variables=context)
    assert templar.template(trust_as_template(templates["ansible_password"])) == "hunter2"


def test_a_machine_without_an_address_is_reached_by_its_name() -> None:
    args = {"name": "a-slot-1", "machine": "a", "slot": 1, "groups": ["worker"]}
    added: Any = machine_ranks.add(a_play({"a": {}}), args)
    assert added[-1]["ansible_host"] == "a"


def test_a_play_of_the_role_alone_needs_the_ranks_to_be_added() -> None:
    skipped = {"train_job_ranks": 2, machine_ranks.REGISTERED: {"skipped": True}}
    values: Any = {"a": skipped, "b": {"train_job_ranks": "1"}, "c": {}}
    with pytest.raises(UserError, match=r"^a would have one rank, .* `tasks_from: ranks`"):
        machine_ranks.check_added(a_play(values), values)
    added: Any = {"a": {"train_job_ranks": 2, machine_ranks.REGISTERED: {"ranks": []}}}
    machine_ranks.check_added(a_play(added), added)
