"""The command line in this process: its errors, and its calls of Ansible."""

from __future__ import annotations

import getpass
import itertools
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import REPOSITORY
from train.cli import ansible_options
from train.cli.ansible_options import parse_variables
from train.cli.main import build_parser, main


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


def test_the_version_is_the_projects(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(["--version"]) == 0
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"{project['name']} {project['version']}\n"


def test_hosts_can_stand_on_the_command_line() -> None:
    args = build_parser().parse_args(["run", "--hosts", "node-1,node-2", "--hosts=node-3"])
    assert args.inventory == ["node-1,node-2,", "node-3,"]


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
