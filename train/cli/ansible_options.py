"""The options of ansible-playbook that `python -m train` passes on to the playbooks it runs.

Passwords are asked for once and passed on in files that only this user can read.
"""

from __future__ import annotations

import argparse
import configparser
import contextlib
import functools
import getpass
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from train.gang import REPOSITORY, allocations, extra_variables, host_slots, local_paths
from train.gang.allocations import Allocation
from train.gang.errors import UserError
from train.gang.extra_variables import (
    ARGUMENTS,
    ENVIRONMENT,
    Unsafe,
    is_plain,
    plain,
)
from train.gang.packages.requested import NEXT_TO_SCRIPT

#: Prefix of the names of password files.
PASSWORD_FILE = "password-"

#: Variables whose values from the command line or from Python are never treated as templates.
DATA = (
    *(ENVIRONMENT, ARGUMENTS, "train_job_script", "train_job_include", "train_job_exclude"),
    *("train_job_requirements", "train_job_runs_dir", "train_job_id"),
)

#: Variables whose values are paths of this machine, or lists of them.
_LOCAL_PATHS = (
    *("train_job_script", "train_job_include", "train_job_requirements", "train_job_runs_dir"),
    *("train_job_metrics_dir", "train_job_logs_dir"),
    *("ansible_ssh_private_key_file", "ansible_private_key_file"),
)

#: Matches templates: Jinja's delimiters, and a header that changes them.
TEMPLATE = re.compile(r"\{[{%#]|^#jinja2:")

#: Ansible variables. Their values may have any JSON type.
Variables = Mapping[str, Any]


def default_inventory() -> tuple[str, ...]:
    """Return the inventory for commands without ``-i``.

    This is TRAIN_INVENTORY (a value for ``-i``), ANSIBLE_INVENTORY, or ``inventory`` in the
    ansible.cfg of this clone.
    """
    chosen = os.environ.get("TRAIN_INVENTORY", "").strip()
    if chosen:
        return (chosen,)
    listed = os.environ.get("ANSIBLE_INVENTORY", "").strip()
    if listed:
        return _sources(listed)
    config = configparser.ConfigParser(interpolation=None)
    config.read(REPOSITORY / "ansible.cfg", encoding="utf-8")
    sources = _sources(config.get("defaults", "inventory", fallback="inventory/local"))
    return tuple(source if "," in source else str(REPOSITORY / source) for source in sources)


def _sources(text: str) -> tuple[str, ...]:
    """Return the inventory sources in a text, which may be a comma-separated list."""
    if text.endswith(","):
        return (text,)
    with contextlib.suppress(UserError):
        if local_paths.absolute(text).exists():
            return (text,)
    return tuple(part.strip() for part in text.split(",") if part.strip())


def default_origin() -> str:
    """Return the name of the variable or file that sets the default inventory, for messages."""
    names = ("TRAIN_INVENTORY", "ANSIBLE_INVENTORY")
    return next((name for name in names if os.environ.get(name, "").strip()), "ansible.cfg")


@dataclass(frozen=True)
class AnsibleOptions:
    """The options that each call of ansible-playbook gets."""

    # Files, folders, and host lists, which contain a comma (host1,host2,).
    inventory: tuple[str, ...] = field(default_factory=default_inventory)
    words: tuple[str, ...] = ()  # further options, such as --user=train
    # Pairs of an option that reads a password from a file, such as --become-password-file=, and
    # the password. The path of the file is appended to the option.
    passwords: tuple[tuple[str, str], ...] = ()

    def command_line(self, folder: Path) -> list[str]:
        """Return the words of the command line, and write the passwords to files in ``folder``.

        Other users must not be able to read ``folder``. Raise FileNotFoundError if an inventory
        does not exist.
        """
        words: list[str] = []
        for source in self.inventory:
            whole = absolute(source)
            if "," not in source and not Path(whole).exists():
                named = "" if self.inventory != default_inventory() else f" ({default_origin()})"
                raise FileNotFoundError(
                    f"no such inventory: {whole}{named}. To list hosts instead of naming a file, "
                    "add a comma: -i HOST,"
                )
            words += ["-i", whole]
        for number, (option, password) in enumerate(self.passwords):
            path = folder / f"{PASSWORD_FILE}{number}"
            path.touch(mode=0o600)
            path.write_text(password, encoding="utf-8")
            words.append(f"{option}{path}")
        return [*words, *self.words]


#: One inventory, several inventories, or AnsibleOptions; None for the default.
Inventory = str | Path | Sequence[str | Path] | AnsibleOptions | None


def options_of(inventory: Inventory) -> AnsibleOptions:
    """Return AnsibleOptions for an argument that may be only an inventory."""
    if isinstance(inventory, AnsibleOptions):
        return inventory
    if not inventory:
        return AnsibleOptions()
    several = [inventory] if isinstance(inventory, str | Path) else inventory
    return AnsibleOptions(tuple(str(source) for source in several))


def absolute(source: str) -> str:
    """Return an inventory source as an absolute path; host lists are returned unchanged.

    Raise UserError if it is empty, or a path that cannot be made absolute.
    """
    if "," in source:
        return source
    if not source.strip():
        raise UserError(
            "the inventory is empty: pass a file, a folder or a list of hosts, such as "
            "-i HOST,HOST2, or leave -i out to use the default"
        )
    # As in Ansible, variables are read next to a link, not next to its target.
    return os.path.normpath(local_paths.absolute(source))


def mentions(inventory: Inventory, name: str) -> bool:
    """Return whether a file of the inventory, or of the variables next to it, contains ``name``.

    This is fast, while Ansible takes half a second to read its inventory.
    """
    folders = [REPOSITORY / "playbooks/group_vars", REPOSITORY / "playbooks/host_vars"]
    files = []
    for source in (source for source in options_of(inventory).inventory if "," not in source):
        path = Path(absolute(source))
        if path.is_dir():
            folders.append(path)
        else:
            files.append(path)
            folders += [path.parent / "group_vars", path.parent / "host_vars"]
    files += [
        Path(parent, file)
        for folder in folders
        for parent, _, names in os.walk(folder, followlinks=True)
        for file in names
    ]
    return any(name.encode() in _beginning(path) for path in files)


def _beginning(path: Path) -> bytes:
    """Return the first MiB of a file, or b'' if it cannot be read."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as stream:
            return stream.read(1 << 20)
    except OSError:
        return b""


def _whole(path: str) -> str:
    """Return the absolute form of a path."""
    return str(local_paths.absolute(path))


def _vault_id(value: str) -> str:
    """Return ``NAME@PATH`` with an absolute path; ``NAME@prompt`` is returned unchanged."""
    name, at, path = value.partition("@")
    if not at:
        return _whole(value)
    return value if path == "prompt" else f"{name}@{_whole(path)}"


#: The names of each option, its metavar (empty if it takes no value), and its help. All options are
#: passed on, except those that ask for passwords.
_OPTIONS = (
    ("-u --user", "USER", "log in as this user"),
    ("--private-key", "FILE", "log in with this key"),
    ("-c --connection", "PLUGIN", "connection plugin"),
    ("-T --timeout", "SECONDS", "timeout for a connection attempt"),
    ("--ssh-common-args", "ARGS", "extra arguments for ssh, sftp and scp"),
    ("--ssh-extra-args", "ARGS", "extra arguments for ssh only"),
    ("--become-user", "USER", "become this user (default: root)"),
    ("--become-method", "PLUGIN", "how to become another user (default: sudo)"),
    ("--vault-password-file", "FILE", "file that contains the vault password"),
    ("--vault-id", "FILE", "vault password as NAME@FILE, or NAME@prompt to be asked for it"),
    ("--connection-password-file", "FILE", "file that contains the login password"),
    ("--become-password-file", "FILE", "file that contains the become password"),
    ("--forks", "N", "number of hosts to contact in parallel"),
    ("-b --become", "", "become another user on the hosts"),
    ("-v --verbose", "", "also show Ansible's output (-vvv for more)"),
    ("-k --ask-pass", "", "ask for the login password"),
    ("-K --ask-become-pass", "", "ask for the become password"),
    ("-J --ask-vault-pass --ask-vault-password", "", "ask for the vault password"),
)


class HostSource(str):
    """An inventory that is a list of hosts.

    ``typed`` has the option that the user typed for it. ``allocation`` is the allocation of the
    batch job that the hosts are from, if any.
    """

    typed: tuple[str, ...]
    allocation: Allocation | None = None


def _inventory(source: str) -> str:
    """Check the value of ``--inventory``."""
    try:
        absolute(source)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return source


def _hosts(text: str) -> str:
    """Convert the value of ``--hosts`` to an inventory."""
    try:
        return host_slots.source_of(host_slots.parse_list(text))
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@functools.cache  # a pipe can be read only once
def _hostfile(path: str) -> HostSource:
    """Return the hosts of a host file as an inventory."""
    try:
        source = HostSource(host_slots.source_of(host_slots.read_file(local_paths.absolute(path))))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error.strerror}") from None
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    source.typed = ("--hostfile", path)
    return source


class _AllocatedHosts(argparse.Action):
    """Uses the nodes of the surrounding batch job as an inventory."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        """Add the nodes of the allocation to the inventory."""
        try:
            allocation = allocations.read(str(self.const), os.environ)
        except UserError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        source = HostSource(host_slots.source_of(allocation.hosts))
        source.typed, source.allocation = (f"--{self.const}",), allocation
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or ()), source])


def allocation_of(inventory: Sequence[str] | None) -> Allocation | None:
    """Return the allocation that an inventory was made from, or None."""
    sources = (source for source in inventory or () if isinstance(source, HostSource))
    return next((source.allocation for source in sources if source.allocation), None)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ansible-playbook to a parser."""
    parser.add_argument(
        *("-e", "--extra-vars"),
        dest="variables",
        metavar="VAR=VALUE",
        action="append",
        default=[],
        help="set a role variable, or read variables from @FILE; may be repeated",
    )
    group = parser.add_argument_group("options of ansible-playbook")
    text = (
        "file, folder or list of hosts (host1,host2,); may be repeated (default: the job's "
        "inventory, $TRAIN_INVENTORY, $ANSIBLE_INVENTORY, or inventory/local)"
    )
    group.add_argument(
        *("-i", "--inventory"), metavar="INVENTORY", action="append", type=_inventory, help=text
    )
    group.add_argument(
        "--hosts",
        dest="inventory",
        metavar="HOST,HOST",
        action="append",
        type=_hosts,
        help="use these hosts as workers instead of an inventory; HOST:N has N ranks",
    )
    group.add_argument(
        "--hostfile",
        dest="inventory",
        metavar="FILE",
        action="append",
        type=_hostfile,
        help="use the hosts of a host file of MPI or DeepSpeed; each slot is a rank",
    )
    for system, name in zip(allocations.SYSTEMS, ("Slurm", "PBS", "LSF"), strict=True):
        group.add_argument(
            f"--{system}",
            dest="inventory",
            nargs=0,
            const=system,
            action=_AllocatedHosts,
            help=f"use the nodes of the surrounding {name} job; each task is a rank",
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
    def word(given: str) -> str:
        try:
            return f"{option}={value(given)}"
        except UserError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return word


def plain_variables(variables: Variables) -> dict[str, Any]:
    """Return variables, converted to types of JSON, with absolute paths.

    Ansible runs in another folder, where relative paths of this machine would have another meaning.
    Raise ValueError if a variable cannot be converted or its name is not text. The message has the
    name.
    """
    for name in variables:
        if not isinstance(name, str):
            raise ValueError(
                f"{name!r} is not the name of a variable: names must be text. Put names such as "
                "'on', 'yes' and 'null' in quotes, because YAML reads them as other values"
            )
    return {
        name: _absolute_paths(plain(value, name), name)
        if name in _LOCAL_PATHS
        else plain(value, name)
        for name, value in variables.items()
    }


def _absolute_paths(value: Any, name: str) -> Any:
    """Return the value of a variable in _LOCAL_PATHS with absolute paths; keep templates."""
    if isinstance(value, list):
        return [_absolute_paths(item, name) for item in value]
    if not isinstance(value, str) or value in ("", NEXT_TO_SCRIPT):
        return value
    if name not in DATA and TEMPLATE.search(value):
        return value
    try:
        return str(local_paths.absolute(value))
    except UserError as error:
        raise ValueError(f"{name}: {error}") from None


def merged(low: Variables, high: Variables) -> dict[str, Any]:
    """Merge variables; those in ``high`` win. The script's environment is merged likewise."""
    found = {**low, **high}
    environments = low.get(ENVIRONMENT), high.get(ENVIRONMENT)
    if all(isinstance(one, Mapping) for one in environments):
        found[ENVIRONMENT] = {**low[ENVIRONMENT], **high[ENVIRONMENT]}
    return found


def parse_variables(given: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Parse ``-e`` options: ``NAME=VALUE``, a YAML or JSON object, or ``@FILE``.

    Return the variables, and the files that Ansible has to decrypt in full or in part. Raise
    ValueError for any other option.
    """
    variables: dict[str, Any] = {}
    encrypted: list[str] = []
    for text in given:
        if not text.startswith(("@", "{")):
            variables = merged(variables, _pair(text))
            continue
        path = text[1:] if text[0] == "@" else None
        try:
            source = text if path is None else local_paths.absolute(path).read_text("utf-8")
            if path is not None and source.startswith("$ANSIBLE_VAULT;"):
                encrypted.append(path)
                continue
            loaded = extra_variables.load(source)
        except (OSError, ValueError, yaml.YAMLError, UserError) as error:
            raise ValueError(f"-e {text}: {error}") from error
        if not isinstance(loaded, dict):
            raise ValueError(f"-e {text}: expected a mapping of variables (NAME: VALUE)")
        known = {name: value for name, value in loaded.items() if is_plain(value)}
        variables = merged(variables, _named(text, known))
        if len(known) < len(loaded):
            if path is None:
                raise ValueError(
                    f"-e {text}: values with a tag such as !vault are supported only in a file: "
                    "use -e @FILE"
                )
            encrypted.append(path)
    return variables, encrypted


def _pair(text: str) -> dict[str, Any]:
    """Return the variable in ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(
            f"-e {text}: expected NAME=VALUE, where NAME consists of letters, digits and _"
        )
    loaded: Any = value
    if value[:1] in ("[", "{") and not value.startswith(("{{", "{%", "{#")):
        try:
            loaded = extra_variables.load(value, name)
        except (ValueError, yaml.YAMLError) as error:
            raise ValueError(f"-e {text}: {error}") from error
        if not is_plain(loaded):
            raise ValueError(
                f"-e {text}: values with a tag such as !vault are supported only in a file: use "
                "-e @FILE"
            )
    return _named(text, {name: loaded})


def _named(text: str, variables: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the variables of the option ``-e`` with ``text``, converted to types of JSON.

    Raise ValueError if one cannot be converted. The message names the option.
    """
    try:
        return plain_variables(variables)
    except ValueError as error:
        raise ValueError(f"-e {text}: {error}") from None


class _Writer(yaml.SafeDumper):
    """Writes YAML for Ansible."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: a value that occurs several times is written in full each time."""
        return True


def _represent_unsafe(writer: Any, text: Unsafe) -> Any:
    """Return the YAML node of a string, with the tag ``!unsafe`` only if it may be a template.

    Ansible would read ``!unsafe 'yes'`` as true.
    """
    is_template = TEMPLATE.search(text) is not None
    tag = "!unsafe" if is_template else extra_variables.TEXT
    return writer.represent_scalar(tag, str(text), style='"')


_Writer.add_representer(Unsafe, _represent_unsafe)


def _as_data(value: Any) -> Any:
    if isinstance(value, str):
        return Unsafe(value)
    if isinstance(value, dict):
        return {name: _as_data(item) for name, item in value.items()}
    return [_as_data(item) for item in value] if isinstance(value, list) else value


def file_of(variables: Variables) -> str:
    """Return the contents of a YAML file that passes variables to Ansible.

    The script's path, arguments and environment are data, never templates. Raise ValueError if YAML
    cannot represent a variable. The message names it.
    """
    found = plain_variables(variables)
    for name in found.keys() & set(DATA):
        # An environment that is a string can only be a template. As data, it is a dictionary.
        if name != ENVIRONMENT or isinstance(found[name], dict):
            found[name] = _as_data(found[name])
    return yaml.dump(found, Dumper=_Writer, allow_unicode=True, width=math.inf, sort_keys=False)


def read_options(args: argparse.Namespace, encrypted: Sequence[str]) -> AnsibleOptions:
    """Return the options of a parsed command line, and ask for passwords.

    ``encrypted`` are the paths of variable files that Ansible has to decrypt.
    """
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
