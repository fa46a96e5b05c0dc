"""How ansible-playbook is to be called: the options of its own that `python -m train` passes on.

Whatever playbook a command runs, it is called the same way. Passwords are asked for once, and go
on through files that only this user can read.
"""

from __future__ import annotations

import argparse
import getpass
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from train.gang import REPOSITORY

DEFAULT_INVENTORY = REPOSITORY / "inventory" / "local"
LOGIN = "--connection-password-file="


@dataclass(frozen=True)
class AnsibleOptions:
    """What each call of ansible-playbook is given.

    Attributes:
        inventory: files, folders, and lists of hosts, which have a comma (``host1,host2,``).
        words: further options, such as ``--user=train``.
        passwords: by the option that reads each from the file whose path is appended to it, such as
            ``--become-password-file=``.
    """

    inventory: tuple[str, ...] = (str(DEFAULT_INVENTORY),)
    words: tuple[str, ...] = ()
    passwords: tuple[tuple[str, str], ...] = ()

    @property
    def verbose(self) -> bool:
        """Whether Ansible's own output is wanted."""
        return "--verbose" in self.words

    def command_line(self, folder: Path) -> list[str]:
        """Return the words of the command line.

        Args:
            folder: where the files with the passwords are written; nobody else can read it.

        Raises:
            FileNotFoundError: there is no such inventory.
        """
        words: list[str] = []
        for source in self.inventory:
            if "," not in source:
                # As Ansible does: variables lie beside a link, not beside what it leads to.
                source = os.path.abspath(Path(source).expanduser())  # noqa: PTH100
                if not Path(source).exists():
                    raise FileNotFoundError(
                        f"there is no inventory {source}; a list of hosts has a comma: -i HOST,"
                    )
            words += ["-i", source]
        for number, (option, password) in enumerate(self.passwords):
            path = folder / f"password-{number}"
            path.touch(mode=0o600)
            path.write_text(password, encoding="utf-8")
            words.append(f"{option}{path}")
        return [*words, *self.words]


#: An inventory, several, or these with all other options; None for inventory/local.
Inventory = str | Path | Sequence[str | Path] | AnsibleOptions | None


def options_of(inventory: Inventory) -> AnsibleOptions:
    """Return the options for what may be only an inventory."""
    if isinstance(inventory, AnsibleOptions):
        return inventory
    if not inventory:
        return AnsibleOptions()
    several = [inventory] if isinstance(inventory, str | Path) else inventory
    return AnsibleOptions(tuple(str(source) for source in several))


class _PassOn(argparse.Action):
    """Adds an option as ansible-playbook takes it, a file with its whole path."""

    def __init__(self, *args: Any, path: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._path = path

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        word = self.option_strings[-1]
        if self.nargs != 0:
            labelled = word == "--vault-id"
            word += f"={_whole(values, labelled) if self._path else values}"
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), word])


def _whole(path: str, labelled: bool) -> str:
    """Return a path that holds in another working directory.

    Args:
        labelled: whether it may be NAME@PATH, or NAME@prompt.
    """
    name, at, rest = path.partition("@") if labelled and "@" in path else ("", "", path)
    if at and rest == "prompt":
        return path
    return f"{name}{at}{Path(rest).expanduser().absolute()}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what ansible-playbook takes, but for ``-e``."""
    group = parser.add_argument_group("as for ansible-playbook")
    group.add_argument(
        "-i",
        "--inventory",
        metavar="INVENTORY",
        action="append",
        help="file, folder or list of hosts (host1,host2,); may be repeated "
        "(default: inventory/local)",
    )
    passed: dict[str, Any] = {"action": _PassOn, "dest": "ansible", "default": []}
    path = {**passed, "path": True}
    group.add_argument("-u", "--user", metavar="USER", help="log in as this user", **passed)
    group.add_argument(
        "-k", "--ask-pass", action="store_true", help="ask for the password of the login"
    )
    group.add_argument("--private-key", metavar="FILE", help="log in with this key", **path)
    group.add_argument("-c", "--connection", metavar="PLUGIN", help="connection plugin", **passed)
    group.add_argument(
        "-T", "--timeout", metavar="SECONDS", help="of an attempt to connect", **passed
    )
    group.add_argument("--ssh-common-args", metavar="ARGS", help="for ssh, sftp, scp", **passed)
    group.add_argument("--ssh-extra-args", metavar="ARGS", help="for ssh alone", **passed)
    group.add_argument("-b", "--become", nargs=0, help="become another user on the hosts", **passed)
    group.add_argument("--become-user", metavar="USER", help="whom (default: root)", **passed)
    group.add_argument("--become-method", metavar="PLUGIN", help="how (default: sudo)", **passed)
    group.add_argument(
        "-K", "--ask-become-pass", action="store_true", help="ask for the password for that"
    )
    group.add_argument(
        *("-J", "--ask-vault-pass", "--ask-vault-password"),
        action="store_true",
        help="ask for the password of vaulted files",
    )
    for option, text in (
        ("--vault-password-file", "file with the password of vaulted files"),
        ("--vault-id", "the same as NAME@FILE, or NAME@prompt to be asked for it"),
        ("--connection-password-file", "file with the password of the login"),
        ("--become-password-file", "file with the password to become another user"),
    ):
        group.add_argument(option, metavar="FILE", help=text, **path)
    group.add_argument("--forks", metavar="N", help="hosts at once", **passed)
    group.add_argument(
        *("-v", "--verbose"),
        nargs=0,
        help="show what Ansible prints, too; more with -vvv",
        **passed,
    )


def read_options(args: argparse.Namespace, encrypted: Sequence[str]) -> AnsibleOptions:
    """Return the options of a command line, after asking for the passwords that it wants asked.

    Args:
        encrypted: files of variables that Ansible has to decrypt.
    """
    passwords = []
    if args.ask_pass:
        passwords.append((LOGIN, getpass.getpass("SSH password: ")))
    if args.ask_become_pass:
        hint = " (empty: the SSH password)" if args.ask_pass else ""
        given = getpass.getpass(f"BECOME password{hint}: ")
        passwords.append(("--become-password-file=", given or dict(passwords).get(LOGIN, "")))
    if args.ask_vault_pass:
        passwords.append(("--vault-password-file=", getpass.getpass("Vault password: ")))
    words = []
    for word in args.ansible:
        option, _, value = word.partition("=")
        if option == "--vault-id" and value.endswith("@prompt"):
            name = value.removesuffix("prompt")
            passwords.append(
                (f"{option}={name}", getpass.getpass(f"Vault password ({name[:-1]}): "))
            )
        else:
            words.append(word)
    words += [f"--extra-vars=@{Path(path).expanduser().absolute()}" for path in encrypted]
    found = options_of(args.inventory)
    return replace(found, words=tuple(words), passwords=tuple(passwords))
