"""The options of ansible-playbook that `python -m train` passes on to each playbook that it runs.
Passwords are asked for once, and passed on through files that only this user can read.
"""

from __future__ import annotations

import argparse
import configparser
import datetime
import getpass
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from train.gang import REPOSITORY

#: How the name of a file with a password begins.
PASSWORD_FILE = "password-"

ENVIRONMENT, ARGUMENTS = "train_job_environment", "train_job_args"
#: Variables whose texts are never templates where the command line or Python gives them.
DATA = (
    *(ENVIRONMENT, ARGUMENTS, "train_job_script", "train_job_include", "train_job_exclude"),
    *("train_job_requirements", "train_job_runs_dir", "train_job_id"),
)

#: What makes a text a template: Jinja's delimiters, and a header that changes them.
TEMPLATE = re.compile(r"\{[{%#]|^#jinja2:")

#: Variables of Ansible, whose values are any that JSON has.
Variables = Mapping[str, Any]


def default_inventory() -> tuple[str, ...]:
    """Return the inventory of commands that are given none: TRAIN_INVENTORY, which is a value of
    ``-i``; ANSIBLE_INVENTORY; or ``inventory`` in the ansible.cfg of this clone.
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
    """Return the sources that Ansible reads from a list in its settings."""
    if text.endswith(",") or Path(text).expanduser().exists():
        return (text,)
    return tuple(part.strip() for part in text.split(",") if part.strip())


def default_origin() -> str:
    """Return where the default inventory is set, for messages."""
    names = ("TRAIN_INVENTORY", "ANSIBLE_INVENTORY")
    return next((name for name in names if os.environ.get(name, "").strip()), "ansible.cfg")


@dataclass(frozen=True)
class AnsibleOptions:
    """What each call of ansible-playbook is given."""

    # Files, folders, and lists of hosts, which have a comma (host1,host2,).
    inventory: tuple[str, ...] = field(default_factory=default_inventory)
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
            whole = absolute(source)
            if "," not in source and not Path(whole).exists():
                named = "" if self.inventory != default_inventory() else f" ({default_origin()})"
                raise FileNotFoundError(
                    f"there is no inventory {whole}{named}; a list of hosts has a comma: -i HOST,"
                )
            words += ["-i", whole]
        for number, (option, password) in enumerate(self.passwords):
            path = folder / f"{PASSWORD_FILE}{number}"
            path.touch(mode=0o600)
            path.write_text(password, encoding="utf-8")
            words.append(f"{option}{path}")
        return [*words, *self.words]


#: An inventory, several, or these with all other options; None for the default.
Inventory = str | Path | Sequence[str | Path] | AnsibleOptions | None


def options_of(inventory: Inventory) -> AnsibleOptions:
    """Return the options for what may be only an inventory."""
    if isinstance(inventory, AnsibleOptions):
        return inventory
    if not inventory:
        return AnsibleOptions()
    several = [inventory] if isinstance(inventory, str | Path) else inventory
    return AnsibleOptions(tuple(str(source) for source in several))


def absolute(source: str) -> str:
    """Return a source of an inventory so that it holds in any folder; a list of hosts stays."""
    if "," in source:
        return source
    # As Ansible does: variables are next to a link, not next to its target.
    return os.path.abspath(Path(source).expanduser())  # noqa: PTH100


def mentions(inventory: Inventory, name: str) -> bool:
    """Return whether a file of the inventory, or of the variables next to it, has a name in it. It
    takes no time worth mentioning, and Ansible half a second to read its inventory.
    """
    folders = [REPOSITORY / "playbooks/group_vars", REPOSITORY / "playbooks/host_vars"]
    files = []
    for source in (source for source in options_of(inventory).inventory if "," not in source):
        path = Path(source).expanduser()
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
    """Return the first MiB of a file, nothing of one that cannot be read."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as stream:
            return stream.read(1 << 20)
    except OSError:
        return b""


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
        "file, folder or list of hosts (host1,host2,); may be repeated (default: the job's own, "
        "$TRAIN_INVENTORY, $ANSIBLE_INVENTORY, or inventory/local)"
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


class Unsafe(str):
    """A text that Ansible never takes for a template, as ``!unsafe`` in YAML."""


class _Reader(yaml.SafeLoader):
    """Reads YAML. Dates are text, and Ansible alone knows what has a tag, such as ``!vault``."""


class _Tagged:
    """Stands for a value that has a tag."""


def _unsafe(loader: Any, node: Any) -> Any:
    return Unsafe(node.value) if isinstance(node, yaml.ScalarNode) else _Tagged()


_YAML = "tag:yaml.org,2002:"
_Reader.add_multi_constructor("!", lambda loader, suffix, node: _Tagged())
_Reader.add_constructor("!unsafe", _unsafe)
_Reader.add_constructor(f"{_YAML}timestamp", lambda loader, node: node.value)
#: What stays as it is written where it becomes text for the script.
_WRITTEN = tuple(f"{_YAML}{kind}" for kind in ("int", "float", "timestamp"))
_NAMES = (*_WRITTEN, f"{_YAML}bool", f"{_YAML}null")


def _as_written(node: Any, tags: Sequence[str]) -> Any:
    """Return a node as text, if it has one of ``tags``."""
    if not isinstance(node, yaml.ScalarNode) or node.tag not in tags:
        return node
    return yaml.ScalarNode(f"{_YAML}str", node.value, node.start_mark, node.end_mark)


def _for_script(loader: _Reader, name: str, node: Any) -> None:
    """Have numbers in the script's environment and arguments stay as they are written."""
    if name == ENVIRONMENT and isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        pairs = [(_as_written(k, _NAMES), _as_written(v, _WRITTEN)) for k, v in node.value]
        node.value = pairs
    elif name == ARGUMENTS and isinstance(node, yaml.SequenceNode):
        node.value = [_as_written(item, _WRITTEN) for item in node.value]


def _load(source: str, name: str = "") -> Any:
    """Return what YAML holds: variables, or without any the value of the one that is named."""
    loader = _Reader(source)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if name:
            _for_script(loader, name, node)
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                _for_script(loader, str(key.value), value)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return not isinstance(value, _Tagged)


def plain(value: Any, name: str) -> Any:
    """Return the value of a variable in the types that JSON has. ValueError: it has no such form,
    or is not Unicode.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ValueError(
                f"{name} is binary data, and variables are text: give it as base64"
            ) from None
    if isinstance(value, str):
        try:
            # JSON writes characters beyond 16 bits in two halves.
            text = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            raise ValueError(f"{name} holds {value!r}, which is not UTF-8") from None
        return Unsafe(text) if isinstance(value, Unsafe) else text
    if isinstance(value, Mapping):
        return {plain(key, name): plain(item, name) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, name) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item, name) for item in value), key=str)
    if isinstance(value, (os.PathLike, datetime.date, datetime.time)):
        return str(value)
    raise ValueError(
        f"{name} is of type {type(value).__name__}, and a variable takes text, numbers, true, "
        "false, lists and dictionaries"
    )


def plain_variables(variables: Variables) -> dict[str, Any]:
    """Return variables in the types that JSON has; ValueError names one that has no such form."""
    return {name: plain(value, name) for name, value in variables.items()}


def merged(low: Variables, high: Variables) -> dict[str, Any]:
    """Return the variables of both; the script's environment is that of both, too."""
    found = {**low, **high}
    environments = low.get(ENVIRONMENT), high.get(ENVIRONMENT)
    if all(isinstance(one, Mapping) for one in environments):
        found[ENVIRONMENT] = {**low[ENVIRONMENT], **high[ENVIRONMENT]}
    return found


def parse_variables(given: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the variables of ``-e`` options (``NAME=VALUE``, a YAML or JSON object, ``@FILE``) and
    the files of which Ansible has to decrypt all or some. ValueError: an option is none of these.
    """
    variables: dict[str, Any] = {}
    encrypted: list[str] = []
    for text in given:
        if not text.startswith(("@", "{")):
            variables = merged(variables, _pair(text))
            continue
        path = text[1:] if text[0] == "@" else None
        try:
            source = text if path is None else Path(path).expanduser().read_text("utf-8")
            if path is not None and source.startswith("$ANSIBLE_VAULT;"):
                encrypted.append(path)
                continue
            loaded = _load(source)
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise ValueError(f"-e {text}: {error}") from error
        if not isinstance(loaded, dict):
            raise ValueError(f"-e {text}: it holds no variables, NAME: VALUE")
        known = {name: value for name, value in loaded.items() if _is_plain(value)}
        variables = merged(variables, _named(text, known))
        if len(known) < len(loaded):
            if path is None:
                raise ValueError(f"-e {text}: what has a tag such as !vault goes into a file")
            encrypted.append(path)
    return variables, encrypted


def _pair(text: str) -> dict[str, Any]:
    """Return the variable of ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"-e {text}: give NAME=VALUE, with a NAME of letters, digits and _")
    loaded: Any = value
    if value[:1] in ("[", "{") and not value.startswith(("{{", "{%", "{#")):
        try:
            loaded = _load(value, name)
        except (ValueError, yaml.YAMLError) as error:
            raise ValueError(f"-e {text}: {error}") from error
        if not _is_plain(loaded):
            raise ValueError(f"-e {text}: what has a tag such as !vault goes into a file")
    return _named(text, {name: loaded})


def _named(text: str, variables: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the variables of an option in the types that JSON has."""
    try:
        return plain_variables(variables)
    except ValueError as error:
        raise ValueError(f"-e {text}: {error}") from None


class _Writer(yaml.SafeDumper):
    """Writes YAML for Ansible."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write a value in full wherever it occurs."""
        return True


def _represent_unsafe(writer: Any, text: Unsafe) -> Any:
    """Return a node with the tag only where it matters: "!unsafe 'yes'" would be true."""
    is_template = TEMPLATE.search(text) is not None
    tag = "!unsafe" if is_template else f"{_YAML}str"
    return writer.represent_scalar(tag, str(text), style='"')


_Writer.add_representer(Unsafe, _represent_unsafe)


def _as_data(value: Any) -> Any:
    if isinstance(value, str):
        return Unsafe(value)
    if isinstance(value, dict):
        return {name: _as_data(item) for name, item in value.items()}
    return [_as_data(item) for item in value] if isinstance(value, list) else value


def file_of(variables: Variables) -> str:
    """Return the YAML file that hands variables to Ansible. The script's path, arguments and
    environment are data: they are no templates. ValueError names one that has no form in it.
    """
    found = plain_variables(variables)
    for name in found.keys() & set(DATA):
        # As a whole, an environment can be only a template: it is a dictionary.
        if name != ENVIRONMENT or isinstance(found[name], dict):
            found[name] = _as_data(found[name])
    return yaml.dump(found, Dumper=_Writer, allow_unicode=True, width=math.inf, sort_keys=False)


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
