"""The command line in this process: its errors, and its calls of Ansible."""

from __future__ import annotations

import getpass
import itertools
import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import REPOSITORY
from train.cli import ansible_options, commands, suggesting
from train.cli.ansible_options import parse_variables
from train.cli.job import Job
from train.cli.main import build_parser, main
from train.gang import suggestions


def ended(words: list[str]) -> Any:
    try:
        return main(words)
    except SystemExit as end:  # argparse's
        return end.code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run --script {here}/no.py", "no such script: {here}/no.py"),
        ("run --include {here}/no.py", "no such file or folder: {here}/no.py"),
        ("drill --limit worker1", "train drill: unknown option --limit"),
        ("run --no-such-option", "train run: unknown option --no-such-option\n"),
        ("logs j --tial=3", "train logs: unknown option --tial: did you mean --tail?"),
        ("stop j k", "train stop: unexpected argument k\n"),
        ("run -i {here}/nothing", "no such inventory: {here}/nothing"),
        ("run -e noequals", "expected NAME=VALUE"),
        ("run --job a/b", "'a/b' is not a valid job id"),
        ("run -e train_job_id=a/b", "'a/b' is not a valid job id"),
        ("run --job a -e train_job_id=b", "two ids were given for the job: a, and b"),
        ("stop a -e train_job_id=b", "two ids were given for the job: a, and b"),
        ("run -e train_job_runs_dir=/etc/passwd", "/etc/passwd"),
        ("attach j -e train_job_runs_dir=/etc/passwd", "/etc/passwd"),
        ("atach night-1", "unknown command atach: did you mean attach?"),
        ("stop", "-m train list -e train_job_runs_dir={here}/runs` shows all jobs"),
        ("restart nobody", "attach to the job first with `"),
        ("stop", "JOB"),
        ("stop ''", "'' is not a valid job id: use 1 to 64 letters"),
        ("attach ''", "'' is not a valid job id"),
        ("compare a ../b", "'../b' is not a valid job id"),
        ("clean", "nothing selected for removal: use --older-than AGE or --keep N"),
        ("clean --older-than 14", "'14' is not a valid age: use a number followed by"),
        ("clean --keep -1", "is not a whole number of 0 or more"),
        ("clean --keep few", "is not a whole number of 0 or more"),
        ("status -- x", "status takes no script arguments"),
        ("run x", "unknown argument x: put script arguments after --"),
        *(
            (f"run {option}~nobody-here/x", "~nobody-here is not the home directory of a user")
            for option in (
                *("--script ", "--module m --script ", "--include ", "--requirements "),
                *("-i ", "--hostfile ", "-e @", "--private-key ", "--vault-id=lab@"),
                *("-e train_job_runs_dir=", "-e train_job_metrics_dir="),
            )
        ),
        ("run -i ''", "the inventory is empty: pass a file, a folder or a list of hosts"),
        ("run -e '{{1: 2}}'", "1 is not the name of a variable: names must be text"),
        ("run -e '{{on: 2}}'", "-e {{on: 2}}: True is not the name of a variable"),
        ("run -e '{{train_job_runs_dir: null}}'", "train_job_runs_dir is None, but must be"),
        ("attach j -e '{{train_job_runs_dir: 5}}'", "train_job_runs_dir is 5, but must be"),
        (
            "status j -e train_job_runs_dir=",
            "train_job_runs_dir is '', but must be the path of a folder",
        ),
    ],
)
def test_wrong_use_starts_nothing_and_leaves_nothing(
    words: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delattr("ansible_runner.run_async")
    command, *options = shlex.split(words.format(here=tmp_path))
    runs = tmp_path / "runs"
    assert ended([command, "-e", f"train_job_runs_dir={runs}", *options]) == 2
    assert said.format(here=tmp_path) in capsys.readouterr().err
    assert not runs.exists() or list(runs.iterdir()) == []


@pytest.mark.parametrize(
    "words", ["list -i lab", "run --script main.py", "list -e @x.yml", "list --hostfile hosts"]
)
def test_a_relative_path_in_a_removed_folder_is_an_error(
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delattr("ansible_runner.run_async")
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    assert ended(words.split()) == 2
    assert f"{words.split()[-1].removeprefix('@')}: the current folder was removed" in (
        capsys.readouterr().err
    )


def test_the_version_is_the_projects(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(["--version"]) == 0
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"{project['name']} {project['version']}\n"


def test_hosts_can_stand_on_the_command_line() -> None:
    args = build_parser().parse_args(["run", "--hosts", "node-1,node-2", "--hosts=node-3"])
    assert args.inventory == ["node-1,node-2,", "node-3,"]
    args = build_parser().parse_args(["status", "--hosts", "node-1:2,2001:db8::1,me@node-3"])
    assert args.inventory == ["node-1 slots=2,2001:db8::1 slots=1,node-3 slots=1 user=me,"]


def test_a_host_file_replaces_the_inventory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suggestions, "_noted", [])
    hostfile = tmp_path / "lab hosts"
    hostfile.write_text("# the lab\nnode-1 slots=2\n\nnode-2\n")
    words = ["list", "--hostfile", str(hostfile), "-u", "train"]
    args = build_parser().parse_args(words)
    assert args.inventory == ["node-1 slots=2,node-2 slots=1,"]
    suggesting.note_typed(words)
    quoted = shlex.quote(str(hostfile))
    assert suggestions.command("list").endswith(f"list --hostfile {quoted} --user=train")
    call = suggestions.current()
    assert call.reaching == ("-i", "node-1 slots=2,node-2 slots=1,", "--user=train")

    (tmp_path / "wrong").write_text("node-1 slots=2\nnode-2 slot=two\n")
    assert ended(["run", "--hostfile", str(tmp_path / "wrong")]) == 2
    assert f"{tmp_path / 'wrong'}, line 2: slots is 'two'" in capsys.readouterr().err
    assert ended(["run", "--hostfile", str(tmp_path / "none")]) == 2
    assert "No such file or directory" in capsys.readouterr().err


def options(*words: str) -> ansible_options.AnsibleOptions:
    args = build_parser().parse_args(list(words))
    return ansible_options.read_options(args, parse_variables(args.variables)[1])


@pytest.mark.parametrize(
    "command",
    ["run", "attach J", "restart J", "status", "list", "logs J", "stop J", "clean", "drill"],
)
def test_options_for_ansible(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = itertools.count(1)
    monkeypatch.setattr(getpass, "getpass", lambda prompt: f"secret {next(asked)}")
    (tmp_path / "one").mkdir()
    given = options(
        *command.split(),
        *("-i", "one", "-i", "a,b,", "-u", "me", "-b", "--become-user=you", "-kK", "-vv"),
        *("--private-key", "a@b/my key", "--vault-id", "lab@a@b", "--vault-id", "x@prompt", "-J"),
    )
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    words = given.command_line(private)
    assert words == [
        *("-i", str(tmp_path / "one"), "-i", "a,b,"),
        f"--connection-password-file={private}/password-0",
        f"--become-password-file={private}/password-1",
        f"--vault-password-file={private}/password-2",
        f"--vault-id=x@{private}/password-3",
        *("--user=me", "--become", "--become-user=you", "--verbose", "--verbose"),
        *(f"--private-key={tmp_path}/a@b/my key", f"--vault-id=lab@{tmp_path}/a@b"),
    ]
    assert next(asked) == 5, "four were asked for"
    for number in range(4):
        path = private / f"password-{number}"
        assert path.read_text() == f"secret {number + 1}"
        assert path.stat().st_mode & 0o777 == 0o600


def test_ansible_itself_reads_what_it_has_to_decrypt(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole.yml", tmp_path / "part.yml"
    whole.write_text("$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    vault = "!vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162"
    part.write_text(f"plain: 1\nsecret: {vault}\nin: [!vault x]\n")
    variables, encrypted = parse_variables([f"@{whole}", f"@{part}", "a=b"])
    assert variables == {"plain": 1, "a": "b"}
    assert encrypted == [str(whole), str(part)]
    given = options("list", "-e", f"@{whole}")
    assert given.words == (f"--extra-vars=@{whole}",)
    with pytest.raises(ValueError, match="!vault are supported only in a file"):
        parse_variables(["{a: !vault x}"])


ALLOCATION = {
    **{"SLURM_JOB_ID": "626", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "3"},
    "SLURM_TASKS_PER_NODE": "2,1",
}


def test_the_nodes_of_a_batch_job_replace_the_inventory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(suggestions, "_noted", [])
    monkeypatch.setenv("PATH", str(tmp_path))  # without scontrol
    for name in ALLOCATION:
        monkeypatch.delenv(name, raising=False)
    assert ended(["run", "--slurm"]) == 2
    assert "SLURM_JOB_ID is not set, so this is not a batch job of Slurm" in capsys.readouterr().err
    for name, value in ALLOCATION.items():
        monkeypatch.setenv(name, value)
    args = build_parser().parse_args(["list", "--slurm", "-c", "srun"])
    assert args.inventory == ["n1 slots=2 port=20016,n2 slots=1 port=20016,"]
    suggesting.note_typed(["list", "--slurm", "-c", "srun"])
    assert suggestions.command("list").endswith("list --slurm --connection=srun")
    assert suggestions.current().reaching[1] == args.inventory[0]


@pytest.mark.parametrize(
    ("restarts", "state", "begun"),
    [
        ("0", "stopped", "start"),
        ("1", "stopped", "restart"),
        ("1", None, "restart"),  # the node failed, and nothing wrote a result
        ("1", "completed", ""),
        ("1", "unknown", "start"),  # it was refused before there was a job
    ],
)
def test_a_job_that_slurm_has_restarted_continues(
    restarts: str, state: str | None, begun: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, value in {**ALLOCATION, "SLURM_RESTART_COUNT": restarts}.items():
        monkeypatch.setenv(name, value)
    run_dir = tmp_path / "runs/mine"
    run_dir.mkdir(parents=True)
    if state != "unknown":
        (run_dir / "manifest.json").write_text("{}")
    if state and state != "unknown":
        (run_dir / "result.json").write_text(json.dumps({"state": state}))
    called: list[tuple[str, Any]] = []

    def note(name: str) -> Any:
        return lambda *words, **given: called.append((name, given["variables"]))

    monkeypatch.setattr(Job, "start", note("start"))
    monkeypatch.setattr(Job, "restart", note("restart"))
    monkeypatch.setattr(commands, "watch", lambda job, args: 0)
    words = ["run", "--slurm", "--job", "mine", "-e", f"train_job_runs_dir={tmp_path / 'runs'}"]
    assert ended(words) == 0
    assert [name for name, _ in called] == ([begun] if begun else [])
    # Commands outside of the Slurm job need its id for job steps.
    assert all(variables["ansible_srun_job_id"] == "626" for _, variables in called)
