"""Gives action plugins access to the surrounding play: host variables, connections, output."""

from __future__ import annotations

import base64
import contextlib
import functools
import gc
import multiprocessing
import os
import resource
import secrets
import select
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible import constants
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.loader import filter_loader, test_loader
from ansible.template import Templar, trust_as_template
from ansible.utils.display import Display

from train.gang import (
    REPOSITORY,
    ansible_core,
    host_programs,
    launcher,
    reports,
    role_templates,
)
from train.gang.errors import UnreachableError, UserError
from train.gang.host_session import HostSession
from train.gang.variables import job_variables, script_environment
from train.host import processes

#: Strategies in which all hosts finish a task before any host starts the next one.
_STRATEGIES = ("linear", "debug")

#: The arguments of a task and variables of a host. Ansible has no types for them.
Args = Mapping[str, Any]
#: Results of a task or a host, which have no types either.
Returned = dict[str, Any]

#: Variables of a rank that train_job_ranks adds to the inventory: the host of its machine, and the
#: number of the rank on that machine, from 1.
MACHINE, SLOT = "__train_job_machine", "__train_job_slot"
#: Variables with a host's connection plugin, address, port and user.
_ADDRESS = ("ansible_connection", "ansible_host", "ansible_port", "ansible_user")
#: Size in bytes of the pieces in which a file is fetched.
_PIECE = 4 << 20
#: Maximum size of an archive relative to its files: small files hardly compress.
_OVERHEAD = 1.1
#: Limit in bytes for other files, such as logs, during a fetch: 64 MiB.
_SMALL = 64 << 20
#: The last part of the path of the file in which ansible-runner passes variables.
EXTRA_VARIABLES = "/env/extravars"
#: Errors that ``fetch`` may raise.
FETCH_ERRORS = (UnreachableError, AnsibleError, OSError, ValueError)
_AS_TEXT = """ | base64 | tr -d '\\n' | { printf '{"data": "'; cat; printf '"}'; }"""
_AS_NUMBER = """ | { printf '{"size": '; cat; printf '}'; }"""


class _Output:
    """A standard stream of Ansible that discards output once its reader is gone (``| head``).

    Otherwise Ansible would abort, and the job would no longer be watched.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text or discard it."""
        return int(self._or_discard(self._stream.write, text) or 0)

    def flush(self) -> None:
        """Write buffered text or discard it."""
        self._or_discard(self._stream.flush)

    def _or_discard(self, do: Callable[..., Any], *arguments: str) -> Any:
        try:
            return do(*arguments)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())  # for buffered text as well
            os.close(nowhere)
            return None


def preload() -> None:
    """Load everything that each worker would otherwise load for each task of each host."""
    filter_loader.get("default")  # the first call loads all of them
    test_loader.get("match")
    launcher.archive()
    ansible_core.compile_templates(role_templates.of_each_host())


# Ansible's main process imports this module before the role's first task, and its workers are forks
# of it. The tasks of each attempt include those of the next one, and Ansible follows these includes
# back recursively.
sys.setrecursionlimit(5_000)
ansible_core.use_connection_plugins(REPOSITORY / "plugins/connection")
preload()
# Otherwise, garbage collections examine all objects of Ansible again and again, and each worker
# copies their memory. This costs about a tenth of a job's processor time.
gc.freeze()
sys.stdout, sys.stderr = _Output(sys.stdout), _Output(sys.stderr)


def say(line: str) -> None:
    """Show a line, unless Ansible's output has no reader or is parsed by a program.

    Ansible's main process prints its workers' output in the thread that collects their results. A
    closed pipe would end that thread, and the playbook would wait forever.
    """
    callback = str(constants.DEFAULT_STDOUT_CALLBACK).rpartition(".")[2]
    if "json" in callback or callback == "null":
        return
    try:
        output = Path(f"/proc/{os.getppid()}/fd/1")
        if output.is_fifo():
            pipe = os.open(output, os.O_WRONLY | os.O_NONBLOCK)
            poll = select.poll()
            poll.register(pipe, 0)
            closed = bool(poll.poll(0))  # reported without a request: the pipe has no reader
            os.close(pipe)
            if closed:
                return
    except OSError:  # Ansible has no output
        return
    Display().display(line)


def fetch(action: Any, source: str, destination: Path, limit: int) -> None:
    """Copy an archive, whose files may have at most ``limit`` bytes, from the action's host.

    Ansible's own method fails if the login prints text, and with ``become`` it loads the whole file
    into memory. In these cases, the archive is copied in pieces. Raise one of FETCH_ERRORS if the
    archive cannot be copied or is too large.
    """
    answer = host_programs.run(action, f"wc -c < {shlex.quote(source)}{_AS_NUMBER}")
    size = reports.integer()(answer.get("size"))
    if size > limit * _OVERHEAD:
        raise OSError(f"its size is {size / 2**20:.0f} MiB; the limit is {limit / 2**20:g} MiB")
    if action._connection.become is None:
        with contextlib.suppress(AnsibleError, OSError), _no_file_above(size):
            action._connection.fetch_file(source, str(destination))
            if destination.stat().st_size == size:
                return
    with destination.open("wb") as stream:
        for piece in range(-(-size // _PIECE)):
            read = f"dd if={shlex.quote(source)} bs={_PIECE} skip={piece} count=1 2>/dev/null"
            piece_of = host_programs.run(action, f"{read}{_AS_TEXT}")
            data = reports.chunk(2 * _PIECE)(piece_of.get("data"))
            stream.write(base64.b64decode(data))
        if stream.tell() != size:
            raise OSError(f"{source} was truncated: received {stream.tell()} of {size} bytes")


@contextlib.contextmanager
def _no_file_above(size: int) -> Iterator[None]:
    """Limit files that this process and its children write to ``size`` bytes, but at least _SMALL.

    A host therefore cannot fill the disk during a fetch.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(size, _SMALL), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def end_with_ansible() -> None:
    """Make this worker of ansible-playbook end when ansible-playbook ends.

    A worker has its own session, so nothing else ends it when ansible-playbook is killed.
    """
    ansible = multiprocessing.parent_process()
    if ansible is None:
        return  # this process is ansible-playbook itself
    processes.request_signal_at_parent_end(signal.SIGTERM)
    if os.getppid() != ansible.pid:
        os.kill(os.getpid(), signal.SIGTERM)


def allow_many_connections() -> None:
    """Let this process open as many files as the system allows it.

    A connection to a host that is asked repeatedly takes up to nine. The usual limit, 1024, is for
    programs that cannot handle more; the system allows more to those that ask for it.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@functools.cache
def _scalars(path: str) -> dict[tuple[int, int], str]:
    """Return the scalars of a YAML file by line and column; empty if it cannot be read."""
    found: dict[tuple[int, int], str] = {}
    with contextlib.suppress(OSError, UnicodeError, yaml.YAMLError):
        for document in yaml.compose_all(Path(path).read_text(encoding="utf-8"), yaml.SafeLoader):
            nodes = [document]
            while nodes:
                node = nodes.pop()
                if isinstance(node, yaml.ScalarNode):
                    mark = node.start_mark
                    found[mark.line + 1, mark.column + 1] = node.value
                elif isinstance(node, yaml.MappingNode):
                    nodes += [part for pair in node.value for part in pair]
                elif isinstance(node, yaml.SequenceNode):
                    nodes += node.value
    return found


def written(value: Any) -> str | None:
    """Return a number or date as it was written in its YAML file, or None if unknown."""
    place = ansible_core.place_of(value)
    if place is None or not (place.path and place.line and place.column):
        return None
    text = _scalars(place.path).get((place.line, place.column))
    with contextlib.suppress(yaml.YAMLError, ValueError):
        if text is not None and yaml.safe_load(text) == value:
            return text
    return None


@functools.cache
def _resolved(path: str) -> Path:
    """Return a path without links. The collection may be reached through one."""
    return Path(path).resolve()


class Play:
    """The play of an action that runs once, with access to all hosts of the play.

    Variables of a host are those that the action's task sees. ``hostvars`` lacks values that are
    set in the play, a role or an include, such as parameters, ``vars`` and defaults.
    """

    def __init__(self, action: Any, task_vars: Args) -> None:
        #: All inventory hosts of the play, including failed ones, and the host of the task.
        self.hosts: list[str] = list(task_vars["ansible_play_hosts_all"])
        self.host = str(task_vars["inventory_hostname"])
        #: The hosts on which no task of this play has failed.
        self.active: list[str] = list(task_vars.get("ansible_play_hosts", self.hosts))
        self.limited = bool(task_vars.get("ansible_limit"))
        self.check_mode = bool(action._task.check_mode)
        self._action = action
        self._at_once = len(task_vars["ansible_play_batch"])
        self._hostvars = task_vars["hostvars"]
        self._of_gang: dict[str, Returned] = {}
        self._actions: dict[tuple[str, str], Any] = {}
        self._interpreters: dict[str, str] = {}
        self._environments: dict[str, str] = {}
        # Ansible's templating and its loading of plugins are not thread-safe.
        self._connecting = threading.Lock()

    def check(self) -> None:
        """Raise UserError if the hosts of this play do not run the tasks together."""
        play = self._action._task.get_play()
        strategy = str(play.strategy).rpartition(".")[2]
        if strategy not in _STRATEGIES:
            raise UserError(
                f"this play has `strategy: {strategy}`, but all hosts of a gang must run each "
                f"task together: remove this line, or use the strategy {' or '.join(_STRATEGIES)}"
            )
        if play.serial and self._at_once < len(self.hosts):
            raise UserError(
                f"this play has `serial` and so runs on {self._at_once} of its {len(self.hosts)} "
                "hosts at a time, but all ranks of a gang must start together: remove `serial` "
                "from the play"
            )

    def registered(self, host: str, name: str) -> Returned:
        """Return the result registered as ``name`` for a host; empty if its task did not run.

        If an action for the gang has registered a result with those of all hosts, it is the host's.
        """
        # Reading a variable renders all of it, which takes a long time for many hosts.
        if name not in self._of_gang:
            self._of_gang[name] = self.of_gang(name)
        found = self._of_gang[name]
        if "hosts" not in found:
            found = self._hostvars[host].get(name) or {}
        by_host = found.get("hosts")
        return (by_host.get(host) or {}) if isinstance(by_host, Mapping) else found

    def of_gang(self, name: str) -> Returned:
        """Return the result registered as ``name`` by a task that runs once."""
        found: Returned = self._hostvars[self.host].get(name) or {}
        return found

    def checks(self, name: str) -> dict[str, Returned]:
        """Return the results of ``gang_check``, registered as ``name``, by host."""
        found: dict[str, Returned] = self.of_gang(name).get("hosts") or {}
        return found

    def connection(self, host: str) -> tuple[str, str, str, str]:
        """Return the connection plugin, address, port and user of a host; empty strings if unset.

        The address defaults to the host's name, except for the plugin ``local``.
        """
        variables = self._hostvars[host]
        plugin, address, port, user = (str(variables.get(name) or "") for name in _ADDRESS)
        return plugin, address or (host if plugin != "local" else ""), port, user

    def has(self, host: str) -> bool:
        """Return whether the inventory has a host of this name."""
        return host in self._hostvars

    def machine_of(self, host: str) -> str:
        """Return the inventory host whose variables a host has: its machine, or the host itself.

        They differ for ranks that train_job_ranks adds to the inventory.
        """
        return str((self.has(host) and self._hostvars[host].get(MACHINE)) or host)

    def groups_of(self, host: str) -> list[str]:
        """Return the names of the inventory groups of a host."""
        return [str(name) for name in self._hostvars[host]["group_names"]]

    def add_host(
        self, name: str, groups: Sequence[str], templates: Mapping[str, str], values: Args
    ) -> Returned:
        """Add a host to the inventory of this run, see ansible_core.add_host."""
        return ansible_core.add_host(self._action, name, groups, templates, values)

    def update_host(self, host: str) -> Returned | None:
        """Read a host's variables from the inventory again. Return the task's result for that.

        Return None if the inventory now lacks the host, and raise UserError if it is invalid.
        """
        try:
            values = ansible_core.inventory_variables(self._action, self._hostvars, host)
        except AnsibleError as error:
            raise UserError(f"the inventory cannot be read: {error}") from None
        return None if values is None else self.add_host(host, [], {}, values)

    def names_of_variables(self, host: str) -> list[str]:
        """Return the names of a host's variables, except those that Ansible itself sets."""
        return ansible_core.names_of_variables(self._hostvars, host)

    def neighbors(self) -> dict[str, list[str]]:
        """Return, for each host, all hosts that are reached in the same way, including itself.

        These share a machine. Machines are distinguished as in playbooks/machines.yml.
        """
        groups: dict[tuple[str, ...], list[str]] = {}
        for host in self.hosts:
            plugin, address, port, user = self.connection(host)
            way = (plugin or "ssh", address, port or "22", user)
            groups.setdefault(("local",) if plugin == "local" else way, []).append(host)
        return {host: together for together in groups.values() for host in together}

    def variables(self, host: str) -> Args:
        """Return all variables of a host, with their templates not yet rendered."""
        return ansible_core.variables_of(self._action, self._hostvars, host)

    def names_of_connection_settings(self, host: str) -> list[str]:
        """Return the names of a host's variables that determine how Ansible connects to it.

        Address, port, user and plugin are left out: see ``neighbors``.
        """
        return [
            name
            for name, value in self.variables(host).items()
            if name.startswith("ansible_")
            and name not in (*_ADDRESS, *constants.INTERNAL_STATIC_VARS)
            and isinstance(value, (str, int))
        ]

    def values(self, host: str, *names: str) -> Returned:
        """Return the rendered values of those variables in ``names`` that are set for a host.

        Raise UserError if a template in one of them is invalid.
        """
        variables = self.variables(host)
        template = self._templating(host, variables)
        return {name: template(name, variables[name]) for name in names if name in variables}

    def rendered(self, host: str, name: str, template: str) -> str:
        """Render a template of this project with the variables of a host.

        If that fails, raise UserError with ``name``.

        Ansible's lookup ``template`` would copy all variables for each host.
        """
        templating = self._templating(host, self.variables(host))
        return str(templating(name, trust_as_template(template)))

    def _templating(self, host: str, variables: Args) -> Callable[[str, Any], Any]:
        """Return a function that renders a host's variable, given its name and value.

        The function raises UserError if a template is invalid.
        """
        templar = Templar(loader=self._action._loader, variables=variables)

        def template(name: str, value: Any) -> Any:
            if value is None or isinstance(value, (bool, int, float)):
                return value
            try:
                return templar.template(value)
            except AnsibleError as error:
                raise UserError(f"{name} of {host}: {error}") from None

        return template

    def environment(self, host: str) -> dict[str, str]:
        """Return the script's environment on a host. Raise UserError if a value is not text."""
        found, problems = self._environment(host)
        job_variables.refuse(
            [f"{job_variables.ENVIRONMENT} of {host} {problem}" for problem in problems]
        )
        return found

    def _environment(self, host: str) -> tuple[dict[str, str], list[str]]:
        machine = self.machine_of(host)
        variables, levels = self._with_levels(machine, job_variables.ENVIRONMENT)
        return script_environment.merge(levels, self._sources(self._templating(machine, variables)))

    def given(self, host: str, names: Sequence[str]) -> job_variables.Given:
        """Return a job's settings from a host's variables, with the values of ``names``."""
        variables, levels = self._with_levels(host, job_variables.ENVIRONMENT)
        template = self._templating(host, variables)
        values: Returned = {}
        problems: list[str] = []
        places = {name: self._place(name, variables[name]) for name in names if name in variables}
        for name, place in places.items():
            try:
                is_default = place == job_variables.DEFAULT
                values[name] = variables[name] if is_default else template(name, variables[name])
            except UserError as error:
                problems.append(str(error))
        return job_variables.Given(
            list(variables),
            values,
            places,
            script_environment.merge(levels, self._sources(template)),
            problems,
        )

    def _with_levels(self, host: str, name: str) -> tuple[Args, list[Any]]:
        """Return all variables of a host, and variable ``name`` at all levels; see levels_of."""
        with self._connecting:
            return ansible_core.levels_of(self._action, self._hostvars, host, name)

    def _sources(self, template: Callable[[str, Any], Any]) -> script_environment.Sources:
        return script_environment.Sources(
            functools.partial(template, job_variables.ENVIRONMENT), written, self._where
        )

    def _place(self, name: str, value: Any) -> str:
        """Return the place where a variable is set, or an empty string if unknown."""
        extra = ansible_core.is_extra_variable(self._hostvars, name)
        return "-e" if extra else self._where(value)

    def _where(self, value: Any) -> str:
        """Return the file and line where a value is set, ``-e``, DEFAULT, or an empty string.

        ``-e`` stands for the command line, an empty string for an unknown place.
        """
        place = ansible_core.place_of(value)
        if place is None:
            return ""
        if not place.path:
            return "-e" if "-e" in place.description else ""
        if place.path.endswith(EXTRA_VARIABLES):
            return "-e"
        if _resolved(place.path) == REPOSITORY / "roles/train_job/defaults/main.yml":
            return job_variables.DEFAULT
        return f"{place.path}:{place.line}" if place.line else place.path

    def notification(self, hosts: Sequence[str]) -> tuple[list[Args], str, str]:
        """Return the scripts' environments, and the command and webhook for notifications.

        They may contain secrets, so they are not task arguments, which Ansible could print.
        """
        environments: list[Args] = [self._environment(host)[0] for host in hosts]
        places = ("train_job_notify_command", "train_job_notify_webhook")
        first = self.values(hosts[0], *places)
        command, webhook = (str(first.get(place) or "") for place in places)
        return environments, command, webhook

    def is_here(self, host: str, purpose: str) -> bool:
        """Return whether commands for a host would run on this machine as this user."""
        connection = self.action_of(host, purpose)._connection
        return connection.transport == "local" and connection.become is None

    def run(self, host: str, purpose: str, words: Sequence[str], folder: str) -> Returned:
        """Run a command in a host's ``folder`` and return the JSON that it prints.

        See host_programs.run. Each ``purpose`` has a separate connection, which runs one command
        at a time.
        """
        command = f"cd {host_programs.word(folder)} && {shlex.join(words)}"
        return host_programs.run(self.action_of(host, purpose), command)

    def session(self, host: str, purpose: str, words: Sequence[str], folder: str) -> HostSession:
        """Start a program that stays on a host, with ``folder`` as its working directory.

        The connection of this ``purpose`` must not be used by anything else until the session is
        closed. Raise SessionError if the program cannot be started, UnreachableError if the login
        fails.
        """
        return HostSession(self.action_of(host, purpose), words, host_programs.word(folder))

    def login(self, host: str, purpose: str, command: str) -> tuple[str, str]:
        """Run a command that prints a line. Return the rest of the login's output, and that line.

        The rest is the text before the line, and the error output. Raise OSError or
        UnreachableError if the command fails.
        """
        mark = f"mark-{secrets.token_hex(8)}"
        marked = f"echo {mark} $({command}) {mark}"
        try:
            # With an input, Ansible requests no terminal, and ssh prints no message about its end.
            action = self.action_of(host, purpose)
            done = action._low_level_execute_command(marked, sudoable=False, in_data=b"\n")
        except AnsibleConnectionFailure as error:
            raise host_programs.unreachable(error) from error
        text, _, rest = str(done["stdout"]).partition(mark)
        seen, found, _ = rest.partition(mark)
        if not found:
            raise OSError(f"exit code {done['rc']}")
        noise = reports.bounded(f"{text}{done['stderr']}".strip())
        return str(noise), seen.strip()

    def call(
        self, host: str, purpose: str, python: str, request: Args, archive: bytes = b""
    ) -> Returned:
        """Run a program of train/host/calls.py on a host that may not have the job's files yet.

        See host_programs.call. ``python`` is the path of an interpreter; if it is empty, that of
        the host's variables is used.
        """
        action = self.action_of(host, purpose)
        words = shlex.quote(python) if python else self.interpreter_of(host)
        return host_programs.call(action, words, request, archive)

    def interpreter_of(self, host: str) -> str:
        """Return the interpreter of a host that already has an action, see host_programs.

        The task's ``environment`` precedes it.
        """
        return self._interpreters[host]

    def environment_of(self, host: str) -> str:
        """Return the task's ``environment`` for commands on a host that already has an action."""
        return self._environments[host]

    def fetch(self, host: str, source: str, destination: Path, limit: int) -> None:
        """Copy an archive from a host to this machine; see the function ``fetch``."""
        fetch(self.action_of(host, "fetch"), source, destination, limit)

    def connect(self, host: str, purpose: str) -> Any:
        """Return Ansible's connection to a host for one purpose. Nothing is sent yet."""
        return self.action_of(host, purpose)._connection

    def action_of(self, host: str, purpose: str) -> Any:
        """Return an action with the connection to a host for one purpose. Nothing is sent yet."""
        with self._connecting:
            if (host, purpose) not in self._actions:
                variables = self.variables(host)
                action = ansible_core.action_on(self._action, variables, host)
                self._actions[host, purpose] = action
                environment = self._environments[host] = action._compute_environment_string()
                words = host_programs.interpreter(variables, action._templar.template)
                self._interpreters[host] = f"{environment} {words}".strip()
        return self._actions[host, purpose]
