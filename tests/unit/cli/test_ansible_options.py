"""The options of ansible-playbook that every command passes on, and the variables of ``-e``."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from train.cli import ansible_options
from train.cli.ansible_options import parse_variables
from train.cli.main import build_parser


def options(*words: str) -> ansible_options.AnsibleOptions:
    args = build_parser().parse_args(list(words))
    return ansible_options.read_options(args, parse_variables(args.variables)[1])


@pytest.mark.parametrize(
    "command",
    ["run", "attach J", "restart J", "status", "list", "logs J", "stop J", "clean", "drill"],
)
def test_every_command_passes_the_same_options_on(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return f"secret {len(asked)}"

    monkeypatch.setattr(getpass, "getpass", answer)
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
    assert len(asked) == 4
    for number in range(4):
        path = private / f"password-{number}"
        assert path.read_text() == f"secret {number + 1}"
        assert path.stat().st_mode & 0o777 == 0o600


def test_ansible_itself_reads_what_it_has_to_decrypt(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole.yml", tmp_path / "part.yml"
    whole.write_text("$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    part.write_text(
        "plain: 1\nsecret: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\nin: [!unsafe x]\n"
    )
    variables, encrypted = parse_variables([f"@{whole}", f"@{part}", "a=b"])
    assert variables == {"plain": 1, "a": "b"}
    assert encrypted == [str(whole), str(part)]
    given = options("list", "-e", f"@{whole}")
    assert given.words == (f"--extra-vars=@{whole}",)
    with pytest.raises(ValueError, match="!vault goes into a file"):
        parse_variables(["{a: !vault x}"])
