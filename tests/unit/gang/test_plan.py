"""The plan that the control node makes before a gang starts."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

from train.gang.errors import UserError
from train.gang.plan import planned_ranks, script_files
from train.gang.plan.placement import aliases, choose

Groups = dict[str, list[str]]


#: What check_host returns of each host.
HOSTS: Any = {
    name: {"machine": machine, "address": address, "port": port, "tensorflow": "2.21.0"}
    for name, machine, address, port in (
        ("a", "A", "10.0.0.1", 12345),
        ("b", "B", "10.0.0.2", 12345),
        ("c", "B", "10.0.0.2", 12346),
        ("d", "D", "10.0.0.4", 12345),
    )
}


def test_the_index_is_the_place_in_the_group() -> None:
    ranks = planned_ranks.plan_ranks(
        {"worker": ["b", "a"], "chief": ["d"], "evaluator": ["c"]}, HOSTS
    )
    fields = ("host", "task", "port", "non_training", "ranks_on_machine")
    assert [tuple(dict(rank)[name] for name in fields) for rank in ranks] == [
        ("d", "chief-0", 12345, False, 1),
        ("b", "worker-0", 12345, False, 2),
        ("a", "worker-1", 12345, False, 1),
        ("c", "evaluator-0", None, True, 2),  # it opens no port
    ]


def test_workers_of_parameter_servers_are_services() -> None:
    ranks = planned_ranks.plan_ranks({"chief": ["a"], "worker": ["b"], "ps": ["c"]}, HOSTS)
    services = {rank["task"]: rank["non_training"] for rank in ranks}
    assert services == {"chief-0": False, "worker-0": True, "ps-0": True}


def test_without_a_chief_workers_of_parameter_servers_train() -> None:
    ranks = planned_ranks.plan_ranks({"worker": ["a", "b"], "ps": ["c"]}, HOSTS)
    services = {rank["task"]: rank["non_training"] for rank in ranks}
    assert services == {"worker-0": False, "worker-1": False, "ps-0": True}


def test_a_rank_alone_opens_no_port() -> None:
    assert planned_ranks.plan_ranks({"worker": ["a"]}, HOSTS)[0]["port"] is None


SAME_PORT = "b and c have the same address and port"


@pytest.mark.parametrize(
    ("groups", "changes", "message"),
    [
        ({"ps": ["a"]}, {}, "groups chief and worker are empty"),
        ({"chief": ["a", "b"], "worker": ["c"]}, {}, "at most one chief"),
        ({"worker": ["a"], "evaluator": ["b", "c"]}, {}, "at most one evaluator"),
        ({"worker": ["a", "b"], "chief": ["a"]}, {}, "host a is in the groups chief and worker"),
        ({"worker": ["b", "c"]}, {"c": {"port": 12345}}, SAME_PORT),
        ({"worker": ["b", "c"]}, {"c": {"port": 12345, "address": "other-name"}}, SAME_PORT),
        ({"worker": ["a"]}, {"a": {"tensorflow": "2.20.0"}}, "(2.20.0 on a; 2.21.0 on b, c, d)"),
    ],
)
def test_impossible_gangs(groups: Groups, changes: dict[str, dict[str, Any]], message: str) -> None:
    hosts: Any = {name: {**known, **changes.get(name, {})} for name, known in HOSTS.items()}
    with pytest.raises(UserError, match=re.escape(message)):
        planned_ranks.plan_ranks(groups, hosts)


GROUPS = {"chief": [], "worker": ["a", "b", "c"], "ps": [], "evaluator": [], "spare": ["s", "t"]}
NAMED = {"chief": ["a"], "worker": ["b", "c"], "ps": ["p"], "evaluator": ["e"], "spare": []}
AWAY = "it is unreachable: no route"
SERVED = {**NAMED, "spare": ["s"]}
NO_SPARE = {**GROUPS, "spare": []}


@pytest.mark.parametrize(
    ("groups", "missing", "given", "hosts"),
    [
        (GROUPS, "", {}, "a b c"),  # with all hosts, spares stay out
        (GROUPS, "b", {}, "a c s"),
        (GROUPS, "bs", {}, "a c t"),  # a spare that is away itself
        (NO_SPARE, "a", {"least": 2}, "b c"),  # the others move up
        # Hosts of the previous attempt keep their order: the chief before stays the chief.
        (GROUPS, "", {"earlier": ["b", "c", "s"]}, "b c a"),
        (GROUPS, "a", {"earlier": ["b", "c", "s"]}, "b c s"),
        (GROUPS, "a", {"earlier": ["b", "c", "t"]}, "b c t"),
        (NAMED, "a", {"least": 1}, "b c p e"),
        (NAMED, "e", {"least": 1}, "a b c p"),
        (SERVED, "p", {}, "a b c s e"),
    ],
)
def test_who_takes_part(groups: Groups, missing: str, given: dict[str, Any], hosts: str) -> None:
    placement = choose(groups, dict.fromkeys(missing, AWAY), **given)
    assert placement["hosts"] == hosts.split()
    assert placement["left_out"] == {host: AWAY for host in missing if host not in groups["spare"]}
    assert len(placement["groups"]["chief"]) == len(groups["chief"])
    assert len(placement["groups"]["ps"]) == len(groups["ps"])


@pytest.mark.parametrize(
    ("groups", "missing", "least", "message"),
    [
        (NO_SPARE, "b", 0, f"b: {AWAY}: 2 of 3 workers are left, the limit is all 3"),
        (NO_SPARE, "bc", 2, "1 of 3 workers are left, the limit is 2 or more"),
        (NAMED, "p", 1, f"p: {AWAY}: no spare host is available for a parameter server"),
        (NAMED, "e", 0, "set train_job_min_workers to continue without an evaluator"),
    ],
)
def test_too_few_left(groups: Groups, missing: str, least: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        choose(groups, dict.fromkeys(missing, AWAY), least=least)


def test_a_machine_under_two_names_is_warned_of() -> None:
    addresses = {"a": "10.0.0.1", "a2": "10.0.0.1", "b": "10.0.0.2", "b2": "gpu2", "c": "10.0.0.3"}
    reached = {name: f"{address} port 22" for name, address in addresses.items()}
    (warning,) = aliases({name: name[0] for name in addresses}, reached)
    names = "(10.0.0.2 port 22, gpu2 port 22)"
    assert warning.startswith(f"b and b2 are the same machine under 2 names {names}, ")
    assert warning.endswith("set the same ansible_host and ansible_port")


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_script_is_found_and_staged_with_its_neighbours(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    for name in ("main.py", "other.py", "package/part.py", "data/big.bin", "notes.log", ".git/x"):
        write(folder / name, name)
    write(folder / ".trainignore", "# not needed there\ndata/\n*.log\n")
    assert script_files.find_script(str(folder)) == (folder, "main.py", "")
    assert script_files.find_script(str(folder / "other.py")) == (folder, "other.py", "")
    archive = tmp_path / "code.tar.gz"
    digest = script_files.pack(script_files.code_files(folder, exclude=["other.*"]), archive)
    with tarfile.open(archive) as tar:
        names = tar.getnames()
    assert names == ["code/.trainignore", "code/main.py", "code/package/part.py"]
    (folder / "main.py").write_text("changed")
    assert (
        script_files.pack(script_files.code_files(folder, exclude=["other.*"]), archive) != digest
    )


def test_a_module_is_run_in_the_folder_of_its_package(tmp_path: Path) -> None:
    for name in ("trainer/task.py", "trainer/__main__.py", "trainer/deep/job.py"):
        write(tmp_path / name)
    for module, entry in {
        "trainer.task": "trainer/task.py",
        "trainer": "trainer/__main__.py",
        "trainer.deep.job": "trainer/deep/job.py",
    }.items():
        script = script_files.find_script(str(tmp_path), module)
        assert (script.folder, script.entry) == (tmp_path, entry)
        assert script.words == ["-m", module]
    for folder, module, refusal in (
        (tmp_path, "trainer.deep", r"neither trainer/deep\.py nor trainer/deep/__main__\.py"),
        (tmp_path, "trainer/task.py", "is not a module name"),
        (tmp_path, "trainer..task", "is not a module name"),
        (tmp_path / "trainer/task.py", "trainer.task", "is not a directory"),
    ):
        with pytest.raises(UserError, match=refusal):
            script_files.find_script(str(folder), module)


def test_scripts_that_cannot_be_staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    with pytest.raises(UserError, match=r"contains 0 Python files but no main\.py"):
        script_files.find_script(str(folder))
    for name in ("a.py", "b.py"):
        write(folder / name)
    with pytest.raises(UserError, match=r"2 Python files but no main\.py"):
        script_files.find_script(str(folder))
    monkeypatch.setenv("HOME", str(folder))
    with pytest.raises(UserError, match="move the script to its own directory"):
        script_files.find_script(str(folder / "a.py"))
    (folder / "big.bin").write_bytes(b"0" * 2**21)
    with pytest.raises(UserError, match=r"is 2 MiB, the limit is 1 MiB .*big.bin"):
        script_files.code_files(folder, limit_mb=1)


def test_files_are_included_beside_the_script(tmp_path: Path) -> None:
    folder, other = tmp_path / "project", tmp_path / "other"
    for name in ("project/main.py", "other/model.py", "other/data/a.csv", "other/data/b.log"):
        write(tmp_path / name, Path(name).name)
    write(other / "data/.trainignore", "*.log\n")
    (other / "linked.py").symlink_to(other / "model.py")
    names = ["model.py", "linked.py", "../other/data/"]
    include = script_files.find_includes([f"{other}/{name}" for name in names])
    assert [path.name for path in include] == ["model.py", "linked.py", "data"]
    code = script_files.code_files(folder, include)
    assert [name for _, name in code] == [
        *("main.py", "model.py", "linked.py", "data/.trainignore", "data/a.csv")
    ]
    script_files.pack(code, tmp_path / "code.tar.gz")
    with tarfile.open(tmp_path / "code.tar.gz") as tar:
        linked = tar.extractfile("code/linked.py")
        assert linked is not None
        assert linked.read() == b"model.py"


def test_files_that_cannot_be_included(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, other = tmp_path / "project", tmp_path / "other"
    for path in (folder / "main.py", other / "main.py", other / "project/x.py"):
        write(path)
    (other / "empty").mkdir()
    (other / "big.bin").write_bytes(b"0" * 2**21)
    monkeypatch.setenv("HOME", str(other))
    for names, message in [
        (
            ["/nowhere/model.py"],
            "no such file or folder: /nowhere/model.py",
        ),
        (["~"], f"{other} cannot be included as a whole"),
        (["/"], "/ cannot be included as a whole"),
        ([str(tmp_path)], f"{tmp_path} cannot be included as a whole"),
        (["~/project", str(folder)], "would both be staged as project"),
    ]:
        with pytest.raises(UserError, match=re.escape(message)):
            script_files.find_includes(names)
    for name, message in [
        ("main.py", f"main.py: the script's folder {folder} already has an entry with that name"),
        ("empty", "contains no files to copy"),
        ("big.bin", "with the included files is 2 MiB, the limit is 1 MiB"),
    ]:
        with pytest.raises(UserError, match=re.escape(message)):
            script_files.code_files(folder, script_files.find_includes(f"~/{name}"), limit_mb=1)


def test_arguments_are_checked_when_staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = write(tmp_path / "train/worker.py", "import sys\nopen(sys.argv[2]).close()\n")
    model = write(tmp_path / "mine/model.py")
    monkeypatch.setattr(script_files, "WORKER", worker)
    archive = tmp_path / "code.tar.gz"
    script_files.pack(script_files.code_files(worker.parent, [model]), archive)

    def check(script: Path, argument: str) -> None:
        manifest: Any = {"script": str(script), "arguments": [argument]}
        script_files.check_arguments(manifest, archive, {"a": {}})

    check(worker, "model.py")
    with pytest.raises(UserError, match=r"No such file or directory: 'other\.py'"):
        check(worker, "other.py")
    check(tmp_path / "users.py", "other.py")
    assert not list(tmp_path.rglob("*.pyc")), "nothing is left of the check"
