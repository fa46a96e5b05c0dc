"""The options of ansible-playbook that `python -m train` passes on to each playbook that it runs.
Passwords are asked for once, and passed on through files that only this user can read.
"""

from __future__ import annotations

import argparse
import getpass
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from train.gang import REPOSITORY

#: How the name of a file with a password begins.
PASSWORD_FILE = "password-"

#: Variables of Ansible, whose values are any that JSON has.
Variables = Mapping[str, Any]


@dataclass(frozen=True)
class AnsibleOptions:
    """What each call of ansible-playbook is given."""

    # Files, folders, and lists of hosts, which have a comma (host1,host2,).
    inventory: tuple[str, ...] = (str(REPOSITORY / "inventory/local"),)
    words: tuple[str, ...] = ()  # further options, such as --user=train
    # With the option that reads each from the file whose path is appended to it, such as
    # --become-password-file=.
    passwords: tuple[tuple[str, str], ...] = ()

    def command_line(self, folder: Path) -> list[str]:
        """Return the words of the command line, with files for the passwords in ``folder``, which
        nobody else can read. FileNotFoundError: there is no such inventory.
        """
        words: list[str] = []
        for source in self.inventory:
            if "," not in source:
                # As Ansible does: variables lie next to a link, not next to its target.
                source = os.path.abspath(Path(source).expanduser())  # noqa: PTH100
                if not Path(source).exists():
                    raise FileNotFoundError(
                        f"there is no inventory {source}; a list of hosts has a comma: -i HOST,"
                    )
            words += ["-i", source]
        for number, (option, password) in enumerate(self.passwords):
            path = folder / f"{PASSWORD_FILE}{number}"
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


def _whole(path: str) -> str:
    """Return a path that holds in another working directory."""
    return str(Path(path).expanduser().absolute())


def _vault_id(value: str) -> str:
    """Return ``NAME@PATH`` with such a path; ``NAME@prompt`` stays."""
    name, at, path = value.partition("@")
    if not at:
        return _whole(value)
    return value if path == "prompt" else f"{name}@{_whole(path)}"


#: Names, metavar if it takes a value, help. All but questions for passwords are passed on.
_OPTIONS = (
    ("-u --user", "USER", "log in as this user"),
    ("--private-key", "FILE", "log in with this key"),
    ("-c --connection", "PLUGIN", "connection plugin"),
    ("-T --timeout", "SECONDS", "of an attempt to connect"),
    ("--ssh-common-args", "ARGS", "for ssh, sftp, scp"),
    ("--ssh-extra-args", "ARGS", "for ssh alone"),
    ("--become-user", "USER", "become this user (default: root)"),
    ("--become-method", "PLUGIN", "how to become another user (default: sudo)"),
    ("--vault-password-file", "FILE", "file with the password of vaulted files"),
    ("--vault-id", "FILE", "the same as NAME@FILE, or NAME@prompt to be asked for it"),
    ("--connection-password-file", "FILE", "file with the password of the login"),
    ("--become-password-file", "FILE", "file with the password to become another user"),
    ("--forks", "N", "hosts at once"),
    ("-b --become", "", "become another user on the hosts"),
    ("-v --verbose", "", "show what Ansible prints, too; more with -vvv"),
    ("-k --ask-pass", "", "ask for the password of the login"),
    ("-K --ask-become-pass", "", "ask for the password to become another user"),
    ("-J --ask-vault-pass --ask-vault-password", "", "ask for the password of vaulted files"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what ansible-playbook takes."""
    parser.add_argument(
        *("-e", "--extra-vars"),
        dest="variables",
        metavar="VAR=VALUE",
        action="append",
        default=[],
        help="a variable of the roles, or @FILE with several; may be repeated",
    )
    group = parser.add_argument_group("as for ansible-playbook")
    text = (
        "file, folder or list of hosts (host1,host2,); may be repeated (default: inventory/local)"
    )
    group.add_argument("-i", "--inventory", metavar="INVENTORY", action="append", help=text)
    group.add_argument(
        "--hosts",
        dest="inventory",
        metavar="HOST,HOST",
        action="append",
        type=lambda text: text.rstrip(",") + ",",
        help="these hosts, as workers, in place of an inventory",
    )
    for names, metavar, text in _OPTIONS:
        option = names.split()[-1]
        given: dict[str, Any] = {"dest": "ansible", "default": [], "help": text}
        if option.startswith("--ask-"):
            given = {"action": "store_true", "help": text}
        elif metavar:
            value = _vault_id if option == "--vault-id" else _whole if metavar == "FILE" else str
            given |= {"action": "append", "metavar": metavar, "type": _passed_on(option, value)}
        else:
            given |= {"action": "append_const", "const": option}
        group.add_argument(*names.split(), **given)


def _passed_on(option: str, value: Callable[[str], str]) -> Callable[[str], str]:
    return lambda given: f"{option}={value(given)}"


class _Reader(yaml.SafeLoader):
    """Reads YAML, in which Ansible alone knows what has a tag, such as ``!vault``."""


class _Tagged:
    """Stands for a value that has a tag."""


_Reader.add_multi_constructor("!", lambda loader, suffix, node: _Tagged())


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return not isinstance(value, _Tagged)


def parse_variables(given: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the variables of ``-e`` options (``NAME=VALUE``, a YAML or JSON object, ``@FILE``) and
    the files of which Ansible has to decrypt all or some. ValueError: an option is none of these.
    """
    variables: dict[str, Any] = {}
    encrypted: list[str] = []
    for text in given:
        if not text.startswith(("@", "{")):
            name, equals, value = text.partition("=")
            if not equals or not name.isidentifier():
                raise ValueError(
                    f"-e {text}: give NAME=VALUE, with a NAME of letters, digits and _"
                )
            variables[name] = yaml.safe_load(value) if value[:1] in ("[", "{") else value
            continue
        path = text[1:] if text[0] == "@" else None
        try:
            source = text if path is None else Path(path).expanduser().read_text("utf-8")
            if path is not None and source.startswith("$ANSIBLE_VAULT;"):
                encrypted.append(path)
                continue
            loaded = yaml.load(source, _Reader)
        except (OSError, yaml.YAMLError) as error:
            raise ValueError(f"-e {text}: {error}") from error
        if not isinstance(loaded, dict):
            raise ValueError(f"-e {text}: it holds no variables, NAME: VALUE")
        plain = {name: value for name, value in loaded.items() if _is_plain(value)}
        variables.update(plain)
        if len(plain) < len(loaded):
            if path is None:
                raise ValueError(f"-e {text}: what has a tag such as !vault goes into a file")
            encrypted.append(path)
    return variables, encrypted


def read_options(args: argparse.Namespace, encrypted: Sequence[str]) -> AnsibleOptions:
    """Return the options of a command line, passwords asked for; Ansible decrypts ``encrypted``."""
    passwords = []
    login = ""
    if args.ask_pass:
        login = getpass.getpass("SSH password: ")
        passwords.append(("--connection-password-file=", login))
    if args.ask_become_pass:
        hint = " (empty: the SSH password)" if args.ask_pass else ""
        given = getpass.getpass(f"BECOME password{hint}: ")
        passwords.append(("--become-password-file=", given or login))
    if args.ask_vault_pass:
        passwords.append(("--vault-password-file=", getpass.getpass("Vault password: ")))
    words = []
    for word in args.ansible:
        if word.startswith("--vault-id=") and word.endswith("@prompt"):
            option = word.removesuffix("prompt")
            name = option[len("--vault-id=") : -1]
            passwords.append((option, getpass.getpass(f"Vault password ({name}): ")))
        else:
            words.append(word)
    words += [f"--extra-vars=@{_whole(path)}" for path in encrypted]
    found = options_of(args.inventory)
    return replace(found, words=tuple(words), passwords=tuple(passwords))
