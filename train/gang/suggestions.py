"""Suggests commands that users can paste; train/host/suggested.py lists them.

A suggested command is quoted for the shell. It calls the program in the same way as the user did,
with the same inventory and connection options.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from train.gang import COLLECTION, IS_PACKAGED, REPOSITORY, extra_variables, local_paths
from train.gang.errors import UserError
from train.host import suggested
from train.host.suggested import HOST, MARKER, PLAYBOOK, SUGGESTIONS

#: The environment variable with which the command line passes its call on to ansible-playbook.
CALL = "TRAIN_CALL"
#: ``-e`` variables that decide how hosts are reached. None holds a password.
CONNECTION_VARIABLES = (
    *("ansible_user", "ansible_port", "ansible_connection", "ansible_python_interpreter"),
    *("ansible_ssh_private_key_file", "ansible_private_key_file", "ansible_ssh_common_args"),
    *("ansible_ssh_extra_args", "ansible_become_user", "ansible_become_method"),
    "ansible_srun_job_id",
)
#: ``-e`` variables that decide where jobs are, and which environment they use.
_PLACES = (
    *("train_job_root", "train_job_runs_dir", "train_job_lease_dir", "train_job_python"),
    "train_job_framework",
)
#: Those of them that are paths of this machine.
_LOCAL_PATHS = {"ansible_ssh_private_key_file", "ansible_private_key_file", "train_job_runs_dir"}
#: The collection's playbooks by command, for a collection that was installed without the command
#: line. No playbook restarts an ended job, so the one for ``restart`` starts a new job.
_PLAYBOOKS = {
    "attach": "attach -e train_job_id={job}",
    "clean": "clean -e train_job_clean_older_than={age}",
    "logs": "logs -e train_job_id={job}",
    "restart": "train",
    "run": "train",
    "stop": "stop -e train_job_id={job}",
}
#: Connection plugins whose hosts the command ``ssh`` can also reach.
_SSH = ("ssh", "paramiko", "paramiko_ssh", "smart")


@dataclass(frozen=True)
class Call:
    """The call of this program, as far as suggested commands depend on it.

    Attributes:
        train: command that runs the command line, such as ``.venv/bin/python -m train``.
        playbook: command that runs ansible-playbook.
        typed: options that the user gave. Empty if the defaults were used.
        reaching: options with which any command reaches the same hosts.
        job: the job whose stored options are in ``reaching``. Commands about this job need only
            the typed options.
    """

    train: str = "python -m train"
    playbook: str = "ansible-playbook"
    typed: tuple[str, ...] = ()
    reaching: tuple[str, ...] = ()
    job: str = ""

    def dump(self) -> str:
        """Return the call as JSON."""
        return json.dumps(asdict(self))


def load(text: str) -> Call:
    """Return a call from the output of ``dump``."""
    found = json.loads(text)
    for name in ("typed", "reaching"):
        found[name] = tuple(found[name])
    return Call(**found)


def command(name: str, call: Call | None = None, **fields: str) -> str:
    """Return a suggested command for the control node.

    Args:
        name: a key of ``SUGGESTIONS`` whose program is not HOST.
        call: how this program was called. Defaults to ``current()``.
        fields: the values of the command's fields.

    Raises:
        ValueError: a field has a value that does not match its pattern.
    """
    suggested.check(name, fields)
    call = call or current()
    program, usage = SUGGESTIONS[name]
    if is_installed() and not IS_PACKAGED:
        first, *rest = _words(_PLAYBOOKS.get(name, usage), fields)
        words = [*call.reaching, f"{COLLECTION}.{Path(first).stem}", *rest]
        return f"{call.playbook} {shlex.join(words)}"
    first, *rest = _words(usage, fields)
    if program == PLAYBOOK:
        if IS_PACKAGED:
            words = ["playbook", Path(first).stem, *call.reaching, *rest]
            return f"{call.train} {shlex.join(words)}"
        return f"{call.playbook} {shlex.join([*call.reaching, first, *rest])}"
    is_known = not call.job or fields.get("job") == call.job
    options = call.typed if is_known else call.reaching
    return f"{call.train} {shlex.join([first, *options, *rest])}"


def _words(usage: str, fields: Mapping[str, str]) -> Iterator[str]:
    """Yield the words of a command. Raise KeyError if a required field is missing."""
    for optional, required in re.findall(r"\[([^]]*)\]|(\S+)", usage):
        if not optional or set(re.findall(r"\{(\w+)\}", optional)) <= fields.keys():
            for word in (optional or required).split():
                yield word.format(**fields)


def on_host(name: str, host: str, host_vars: Mapping[str, Any], **fields: str) -> str:
    """Return a suggested command for a host, to be typed on this machine.

    Args:
        name: a key of ``SUGGESTIONS`` whose program is HOST.
        host: the inventory host.
        host_vars: the host's connection variables; see ``ssh``.
        fields: see ``command``.
    """
    suggested.check(name, fields)
    quoted = {field: " ".join(map(shlex.quote, _split(field, v))) for field, v in fields.items()}
    line = SUGGESTIONS[name].usage.format(**quoted)
    plugin = str(host_vars.get("ansible_connection") or "ssh").rpartition(".")[2]
    if plugin == "local":
        return line
    if plugin in _SSH:
        # sudo may ask for a password.
        terminal = ["-t"] if line.startswith("sudo ") else []
        return f"{ssh(host_vars, 'ssh', *terminal)} {shlex.quote(line)}"
    call = current()
    ad_hoc = re.sub(r"ansible-playbook('?)$", r"ansible\1", call.playbook)
    words = [*call.reaching, host, "-m", "ansible.builtin.shell", "-a", line]
    return f"{ad_hoc} {shlex.join(words)}"


def _split(field: str, value: str) -> list[str]:
    return value.split() if field == "pids" else [value]


def ssh(host_vars: Mapping[str, Any], program: str = "ssh", *options: str) -> str:
    """Return the command that logs in to a host in the same way as Ansible.

    Args:
        host_vars: the host's connection variables, such as ``ansible_host``.
        program: ``ssh`` or a similar program, such as ``ssh-copy-id``.
        options: additional options.
    """
    words = [program, *options]
    configured = shlex.split(str(host_vars.get("ansible_ssh_args") or ""))
    if any("Proxy" in word or word.startswith("-J") for word in configured):
        words += configured
    for name in ("ansible_ssh_common_args", "ansible_ssh_extra_args"):
        words += shlex.split(str(host_vars.get(name) or ""))
    key, port = host_vars.get("ansible_ssh_private_key_file"), host_vars.get("ansible_port")
    words += ["-i", str(Path(str(key)).expanduser())] if key else []
    words += ["-p", str(port)] if port and str(port) != "22" else []
    user, address = host_vars.get("ansible_user"), str(host_vars.get("ansible_host") or "HOST")
    return shlex.join([*words, f"{user}@{address}" if user else address])


def filled(
    text: str,
    reach: Mapping[str, Mapping[str, Any]] | None = None,
    call: Call | None = None,
    **fields: str,
) -> str:
    """Replace the markers in a text with commands. Invalid markers are left unchanged.

    Args:
        reach: connection variables by host (see ``ssh``). Markers for other hosts are left
            unchanged.
        call: see ``command``.
        fields: values of fields that the markers leave open.
    """

    def fill(marker: re.Match[str]) -> str:
        name, found = marker["name"], suggested.fields_of(marker)
        try:
            suggestion = SUGGESTIONS[name]
            if suggestion.program == HOST:
                host = found.pop(suggested.ON)
                return on_host(name, host, (reach or {})[host], **found)
            more = {field: v for field, v in fields.items() if f"{{{field}}}" in suggestion.usage}
            return command(name, call, **{**more, **found})
        except (KeyError, ValueError):
            return marker[0]

    return MARKER.sub(fill, text)


def current() -> Call:
    """Return the call of this program."""
    if _noted:
        return _noted[-1]
    if _passed_on:
        return load(_passed_on)
    return _of_ansible()


#: The call from the command line, removed from the environment so that child processes do not take
#: it for their own.
_passed_on = os.environ.pop(CALL, "")
#: The argument of ``note``.
_noted: list[Call] = []


def note(call: Call) -> None:
    """Set the call of this program."""
    _noted[:] = [call]


def is_noted() -> bool:
    """Return whether ``note`` was called."""
    return bool(_noted)


def _of_ansible() -> Call:
    """Return the call of ansible-playbook if this process runs it, else a call without options."""
    # Not imported in the command line, which does not need Ansible's modules: they load slowly.
    if "ansible.context" not in sys.modules:
        return Call(train_program(), playbook_program())
    from ansible import constants, context

    given = context.CLIARGS
    words = []
    sources = [str(source) for source in given.get("inventory") or ()]
    if sources != [str(source) for source in constants.DEFAULT_HOST_LIST]:
        words += [word for source in sources for word in ("-i", shown(source))]
    for name, option, default in (
        ("remote_user", "--user", constants.DEFAULT_REMOTE_USER),
        ("private_key_file", "--private-key", constants.DEFAULT_PRIVATE_KEY_FILE),
        ("connection", "--connection", constants.DEFAULT_TRANSPORT),
        ("ssh_common_args", "--ssh-common-args", None),
        ("ssh_extra_args", "--ssh-extra-args", None),
        ("become_user", "--become-user", None),
        ("become_method", "--become-method", constants.DEFAULT_BECOME_METHOD),
    ):
        value = given.get(name)
        if value and value != default:
            words.append(f"{option}={value}")
    for identity in given.get("vault_ids") or ():
        name, at, path = str(identity).rpartition("@")
        is_file = path and path != "prompt"
        words.append(f"--vault-id={name}{at}{_shown_file(path) if is_file else path}")
    flags = {"ask_pass": "--ask-pass", "become_ask_pass": "--ask-become-pass"}
    flags["ask_vault_pass"] = "--ask-vault-pass"
    words += [option for name, option in flags.items() if given.get(name)]
    for name in ("vault_password_files", "connection_password_file", "become_password_file"):
        option = "--" + name.removesuffix("s").replace("_", "-")
        value = given.get(name) or ()
        words += [f"{option}={path}" for path in ([value] if isinstance(value, str) else value)]
    words += carried([str(text) for text in given.get("extra_vars") or ()])
    return Call(train_program(), playbook_program(), tuple(words), tuple(words))


def carried(extra_vars: Sequence[str]) -> list[str]:
    """Return the ``-e`` options that suggested commands also need.

    These are files, and variables that decide how hosts are reached or where jobs are. Passwords
    are excluded.
    """
    words = []
    for text in extra_vars:
        variables: Any = {}
        if text.startswith("@"):
            words += ["-e", f"@{_shown_file(text[1:])}"]
        elif text.startswith("{"):
            variables = _loaded(text)
        else:
            variables = _assignments(text)
        for path in _LOCAL_PATHS & variables.keys():
            value = variables[path]
            is_plain = isinstance(value, str) and value and "{{" not in value
            variables[path] = _shown_file(value) if is_plain else value
        words += variable_words(variables)
    return words


def _assignments(text: str) -> dict[str, Any]:
    """Return the variables of a text such as ``a=1 b=2``."""
    try:
        words = shlex.split(text)
    except ValueError:  # Ansible reports it
        return {}
    return {name: value for name, equals, value in (w.partition("=") for w in words) if equals}


def _loaded(text: str) -> dict[str, Any]:
    """Return the variables of a YAML or JSON object that are no secrets, or none if it is wrong."""
    try:
        loaded = extra_variables.load(text)
        if not isinstance(loaded, dict):
            return {}
        known = (*CONNECTION_VARIABLES, *_PLACES)
        return {
            name: extra_variables.plain(value, name)
            for name, value in loaded.items()
            if name in known and extra_variables.is_plain(value)
        }
    except (ValueError, yaml.YAMLError):  # reported when the variables are read
        return {}


def variable_words(variables: Mapping[str, Any]) -> list[str]:
    """Return ``-e`` options for those variables that suggested commands need."""
    words = []
    for name in (*CONNECTION_VARIABLES, *_PLACES):
        value = variables.get(name)
        if value is None:
            continue
        plain = re.fullmatch(r"[\w./:@~+-]+", str(value))
        words += ["-e", f"{name}={value}" if plain else json.dumps({name: value})]
    return words


def shown(source: str) -> str:
    """Return a path or an inventory as it appears in suggested commands.

    It is relative to the repository if that is the current folder, and otherwise absolute, because
    the command may run in the repository. A list of hosts is unchanged.
    """
    if "," in source:
        return source
    path = Path(os.path.normpath(local_paths.absolute(source)))
    if is_here() and path.is_relative_to(REPOSITORY) and path != REPOSITORY:
        return str(path.relative_to(REPOSITORY))
    return str(path)


def _shown_file(path: str) -> str:
    """Return the path of a file as it appears in suggested commands."""
    try:
        return path if is_here() else str(local_paths.absolute(path))
    except UserError:  # reported when the file is read
        return path


def is_installed() -> bool:
    """Return whether this is an installed collection or package instead of a clone."""
    return REPOSITORY.parent.parent.name == "ansible_collections"


def is_here() -> bool:
    """Return whether the current folder is the repository."""
    try:
        return Path.cwd() == REPOSITORY
    except FileNotFoundError:  # it was removed
        return False


def playbook_program() -> str:
    """Return the command that runs ansible-playbook. In a clone, it runs where ansible.cfg is."""
    return _here(program("ansible-playbook"))


def train_program() -> str:
    """Return the command that runs the command line."""
    words = [sys.orig_argv[0] if sys.orig_argv else "", "-m", "train"]
    if list(sys.orig_argv[1:3]) == words[1:] and words[0]:
        return shlex.join(words)  # exactly as it was typed
    link = Path(sys.executable).parent / "train"
    if Path(sys.argv[0]).name == "train" or (link.exists() and not is_here()):
        return program("train")
    return _here(f"{program(Path(sys.executable).name)} -m train")


def program(name: str) -> str:
    """Return the quoted name of a program of this environment, or its path if PATH lacks it."""
    folder, found = Path(sys.executable).parent, shutil.which(name)
    if found and Path(found).parent.resolve() == folder.resolve():
        return name
    # pipx and uv link the command of an installed package into a folder of PATH. An environment's
    # Python is itself a link, to an interpreter without its packages.
    own = folder / name
    if found and not own.is_symlink() and own.exists() and own.samefile(found):
        return name
    below = is_here() and folder.is_relative_to(REPOSITORY) and folder != REPOSITORY
    return shlex.quote(str((folder.relative_to(REPOSITORY) if below else folder) / name))


def _here(text: str) -> str:
    return text if is_here() or is_installed() else f"cd {shlex.quote(str(REPOSITORY))} && {text}"
