"""The parts of ansible-core that this project uses although they are private.

Each function explains why no public part does the same.
tests/integration/local/test_ansible_core.py runs them under the oldest and the newest supported
ansible-core. Some methods of action plugins begin with an underscore but are documented by Ansible,
such as ``_execute_module``.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import multiprocessing
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible import constants
from ansible._internal._datatag._tags import Origin
from ansible._internal._templating import _engine, _jinja_bits
from ansible.errors import AnsibleError
from ansible.executor.task_executor import TaskExecutor
from ansible.inventory.manager import InventoryManager
from ansible.module_utils import basic
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.plugin_docs import read_docstring
from ansible.plugins.loader import connection_loader
from ansible.template import Templar, trust_as_template
from ansible.utils import vars as ansible_vars

#: Variables of a host. Ansible has no types for them.
Variables = Mapping[str, Any]

#: The module name under which Ansible loads any connection plugin called ``ssh``.
_SSH = "ansible.plugins.connection.ssh"


def modules_python() -> tuple[int, ...]:
    """Return the oldest version of Python on a host that runs Ansible's modules.

    Ansible publishes it only in its documentation.
    """
    return tuple(getattr(basic, "_PY_MIN", ()))


@functools.cache
def _documentation(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_docstring(str(path), ignore_errors=False)
    return found


def documented_options(path: Path) -> dict[str, Any]:
    """Return the options in the documentation of the module at ``path``; empty if it has none.

    Ansible itself reads the documentation of a module only to show it.
    """
    return dict(_documentation(path)["doc"].get("options") or {})


def documented_results(path: Path) -> frozenset[str]:
    """Return the names of the results in the documentation of the module at ``path``."""
    return frozenset(_documentation(path)["returndocs"] or ())


def use_connection_plugins(folder: Path) -> None:
    """Make Ansible use the connection plugin ``ssh`` in ``folder``, whatever its settings are.

    ansible-playbook has loaded its own ``ssh`` before it reads roles. Without this function, it
    would use that module for the plugin in ``folder`` too, because both have the same name.
    """
    connection_loader.add_directory(str(folder))
    loaded = sys.modules.get(_SSH)
    if loaded and Path(str(loaded.__file__)).parent != folder:
        del sys.modules[_SSH]


def compile_templates(texts: Iterable[str]) -> None:
    """Compile templates once, in this process, for itself and all processes that it forks.

    Ansible compiles a template, and each one in the variables that it mentions, whenever it is
    rendered: for each task and each host, in a separate process.

    ``texts`` must not depend on anything but variables: Jinja computes filters of constants while
    it compiles.
    """
    environment: Any = _jinja_bits.AnsibleEnvironment
    compile_any = environment.compile
    compiled: dict[tuple[str, bool], Any] = {}

    def compile_once(self: Any, source: Any, *args: Any, **given: Any) -> Any:
        context = _jinja_bits._TemplateCompileContext.current(optional=True)
        # The settings of an overlay may change the syntax.
        if args or given or context is None or self.overlayed or not isinstance(source, str):
            return compile_any(self, source, *args, **given)
        key = str(source), bool(context.escape_backslashes)
        if key in compiled:
            return compiled[key]
        code = compile_any(self, source)
        if key[0] in known:
            compiled[key] = code
        return code

    known = set(texts)
    environment.compile = compile_once
    engine = Templar(loader=DataLoader())._engine
    for text in known:
        engine._compile_template(trust_as_template(text), _engine.TemplateOptions.DEFAULT)


@dataclass(frozen=True)
class Place:
    """The place where a value is set."""

    path: str  # empty if it does not come from a file
    line: int  # 0 if unknown
    column: int  # 0 if unknown
    description: str


def place_of(value: object) -> Place | None:
    """Return the place where a value is set, or None if unknown.

    Ansible names the place only in its own messages.
    """
    origin = Origin.get_tag(value)
    if origin is None:
        return None
    description = str(origin.description or "")
    return Place(origin.path or "", origin.line_num or 0, origin.col_num or 0, description)


def variables_of(action: Any, hostvars: Any, host: str) -> Variables:
    """Return all variables of a host as the action's task sees them, not yet rendered.

    ``hostvars`` itself lacks values that are set in the play, a role or an include, such as
    parameters, ``vars`` and defaults.
    """
    found: Variables = hostvars._variable_manager.get_vars(
        play=action._task.get_play(), host=hostvars._inventory.get_host(host), task=action._task
    )
    return found


def names_of_variables(hostvars: Any, host: str) -> list[str]:
    """Return the names of a host's variables, except those that Ansible itself sets."""
    return [str(name) for name in hostvars[host] if name not in constants.INTERNAL_STATIC_VARS]


#: Options of Ansible's module add_host, which takes all other arguments as variables.
_ADD_HOST_OPTIONS = ("name", "hostname", "groups", "groupname")


def add_host(
    action: Any, name: str, groups: Sequence[str], templates: Mapping[str, str], values: Variables
) -> dict[str, Any]:
    """Add a host to the inventory of this run of ansible-playbook. Return the task's result.

    ``templates`` become variables of the host that are rendered when they are used. A task with
    Ansible's module add_host would render them at once. Variables with the name of an option of
    that module are left out. The templates must not come from an untrusted source.
    """
    variables: dict[str, Any] = {
        variable: trust_as_template(text)
        for variable, text in templates.items()
        if variable not in _ADD_HOST_OPTIONS
    }
    task = action._task.copy()
    task.args = {**variables, **values, "name": name, "groups": list(groups)}
    adding = action._shared_loader_obj.action_loader.get(
        "ansible.builtin.add_host",
        task=task,
        connection=action._connection,
        play_context=action._play_context,
        loader=action._loader,
        templar=action._templar,
        shared_loader_obj=action._shared_loader_obj,
    )
    result: dict[str, Any] = adding.run()
    return result


def inventory_variables(action: Any, hostvars: Any, host: str) -> dict[str, Any] | None:
    """Return the variables that the inventory now has for a host; None if it lacks the host.

    The inventory is read once in each process, without caches. Variables of its groups, and of
    files in ``host_vars``, are not included.

    Ansible's task ``meta: refresh_inventory`` would replace the inventory of the whole play. A host
    that is missing for a moment, or an error in an inventory, would then end the play.
    """
    sources = tuple(hostvars._inventory._sources)
    found = _read_inventory(action._loader, sources).hosts.get(host)
    omitted = {*constants.INTERNAL_STATIC_VARS, *_ADD_HOST_OPTIONS, "host", "group"}
    return found and {name: value for name, value in found.vars.items() if name not in omitted}


@functools.cache
def _read_inventory(loader: Any, sources: tuple[str, ...]) -> Any:
    """Return a fresh inventory. The play's ``loader`` keeps the contents of files."""
    fresh = DataLoader()
    fresh.set_basedir(loader.get_basedir())
    fresh.set_vault_secrets(loader._vault.secrets)
    return InventoryManager(loader=fresh, sources=list(sources), cache=False)


def is_extra_variable(hostvars: Any, name: str) -> bool:
    """Return whether a variable is set with ``-e``, which overrides all other values."""
    return name in hostvars._variable_manager.extra_vars


def levels_of(action: Any, hostvars: Any, host: str, name: str) -> tuple[dict[str, Any], list[Any]]:
    """Return all variables of a host, and the values of variable ``name`` at all precedence levels.

    The lowest level is first. Ansible itself keeps only the value of the highest level.
    """
    with _keeping_levels(name):
        variables = dict(variables_of(action, hostvars, host))
        levels = _levels_in(variables.get(name))
        # Ansible has already combined the values of several -e options.
        extra = copy.copy(hostvars._variable_manager.extra_vars)
        if name in extra:
            cached = ansible_vars.load_extra_vars.extra_vars
            ansible_vars.load_extra_vars.extra_vars = None
            try:
                again = ansible_vars.load_extra_vars(action._loader)
                levels = [*levels[:-1], *_levels_in(again[name])]
            except (AnsibleError, KeyError, OSError):
                pass  # a file given with -e no longer exists
            finally:
                ansible_vars.load_extra_vars.extra_vars = cached
    variables[name] = levels[-1]
    return variables, levels


#: The key for the values of a variable at all levels, lowest first. They are in a dictionary
#: because Ansible tags values, and cannot tag those of a custom type.
_LEVELS = "__train_job_levels"


@contextlib.contextmanager
def _keeping_levels(name: str) -> Iterator[None]:
    """Make Ansible keep the values of a variable at all levels instead of only the highest.

    Ansible combines variables with one function. It is replaced during the block, and a setting
    makes Ansible call it.
    """

    def combine(low: Variables, high: Variables, *_: Any, **__: Any) -> Variables:
        combined = {**low, **high}
        if name in low and name in high:
            combined[name] = {_LEVELS: [*_levels_in(low[name]), *_levels_in(high[name])]}
        return combined

    before = constants.DEFAULT_HASH_BEHAVIOUR, ansible_vars.merge_hash
    constants.DEFAULT_HASH_BEHAVIOUR, ansible_vars.merge_hash = "merge", combine
    try:
        yield
    finally:
        constants.DEFAULT_HASH_BEHAVIOUR, ansible_vars.merge_hash = before


def _levels_in(value: Any) -> list[Any]:
    return value[_LEVELS] if isinstance(value, Mapping) and _LEVELS in value else [value]


class _Executor(TaskExecutor):  # type: ignore[misc]
    """Creates the connection of a task with Ansible's own code."""

    _task: Any = None  # core 2.21 sets it only while the task itself runs

    def __init__(self, action: Any, play_context: Any) -> None:
        self._task = action._task
        self._play_context = play_context
        self._shared_loader_obj = action._shared_loader_obj
        self._connection = None

    def connect(self, variables: Variables, templar: Any) -> Any:
        """Return the connection that the task would have with these host variables."""
        name = self._task.connection
        if variables.get("ansible_connection") is not None:
            name = templar.template(variables["ansible_connection"])
        self._connection = self._get_connection(variables, templar, name)
        self._set_connection_options(variables, templar)
        return self._connection


def action_on(action: Any, variables: Variables, host: str) -> Any:
    """Return an action like ``action``, but with a connection to another ``host``.

    Ansible gives a task only the connection to the host that it runs for.
    """
    templar = Templar(loader=action._loader, variables=variables)
    # The action's own context has values of the host that the task runs for.
    original = multiprocessing.current_process()._play_context  # type: ignore[attr-defined]
    context = original.set_task_and_variable_override(action._task, variables, templar)
    context.post_validate(templar=templar._engine)
    context.remote_addr = context.remote_addr or host
    connection = _Executor(action, context).connect(variables, templar._engine)
    return type(action)(
        task=action._task,
        connection=connection,
        play_context=context,
        loader=action._loader,
        templar=templar,
        shared_loader_obj=action._shared_loader_obj,
    )
