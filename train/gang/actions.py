"""The base classes of the role's actions: on the control node for a whole gang, or on a host.

The options of an action are defined in its documentation, plugins/modules/ACTION.py, and are
checked before anything runs.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.errors import UnsupportedError
from ansible.plugins.action import ActionBase

from train.gang import (
    REPOSITORY,
    ansible_core,
    connections,
    host_programs,
    login_check,
    suggestions,
)
from train.gang.connections import Args, Play, Returned
from train.gang.errors import BusyError, NothingAnsweredError, UserError
from train.gang.login_failures import LoginFailure

#: Parts of any task's result.
_OF_ANY_TASK = ("changed", "failed", "msg", "unreachable", "warnings")


@functools.cache
def options_of(action: str) -> dict[str, Any]:
    """Return the documented options of an action."""
    return ansible_core.documented_options(REPOSITORY / "plugins/modules" / f"{action}.py")


@functools.cache
def results_of(action: str) -> frozenset[str]:
    """Return the names of the documented results of an action."""
    return ansible_core.documented_results(REPOSITORY / "plugins/modules" / f"{action}.py")


def _argument_spec(action: str) -> dict[str, dict[str, Any]]:
    names = ("type", "elements", "choices", "required", "default")
    return {
        option: {name: about[name] for name in names if name in about}
        for option, about in options_of(action).items()
    }


class _Action(ActionBase):  # type: ignore[misc]
    """An action of the role, with checked options."""

    #: The name of the action and of its file. For an action on a host, it is also the name of the
    #: program in train/host/calls.py.
    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """Read the action's documentation in Ansible's main process, before it forks workers."""
        super().__init_subclass__()
        cls.name = cls.__module__.rpartition(".")[2]
        if (REPOSITORY / "plugins/modules" / f"{cls.name}.py").exists():
            options_of(cls.name)
            results_of(cls.name)

    def run(self, tmp: str | None = None, task_vars: Args | None = None) -> Returned:
        """Check the options and run the action."""
        connections.end_with_ansible()
        result: Returned = super().run(tmp, task_vars)
        result.update(self.act(self._checked_options(), task_vars or {}))
        return result

    def _checked_options(self) -> Args:
        """Return the task's options in their documented types.

        Raise AnsibleActionFail if any of them is invalid.
        """
        checked = ArgumentSpecValidator(_argument_spec(self.name)).validate(self._task.args)
        problems = [
            f"has no option {error}" if isinstance(error, UnsupportedError) else str(error)
            for error in checked.errors
        ]
        if problems:
            raise AnsibleActionFail(f"{self.name}: {'; '.join(problems)}")
        options: Args = checked.validated_parameters
        return options

    @abstractmethod
    def act(self, options: Args, task_vars: Args) -> Returned:
        """Do the work with the checked options, and return the task's result.

        Options that are not set are None.
        """


class GangAction(_Action):
    """An action for all hosts of a job. Its task runs once, on the control node."""

    _supports_check_mode = True
    _requires_connection = False

    #: Whether all hosts of the play must run each task together.
    needs_gang = True

    @staticmethod
    @abstractmethod
    def decide(play: Play, options: Args, /) -> Mapping[str, object]:
        """Return the task's result. A UserError, OSError or ValueError becomes the task's error."""

    def act(self, options: Args, task_vars: Args) -> Returned:
        """Call ``decide``, and report an error that it raises as the task's message."""
        play = Play(self, task_vars)
        try:
            if self.needs_gang:
                play.check()
            return dict(self.decide(play, options))
        except BusyError as error:
            return {"failed": True, "msg": str(error)}
        except NothingAnsweredError as error:
            return {"failed": True, "nothing_answered": True, "msg": str(error)}
        except Exception as error:
            return self.failure(error, options)

    def failure(self, error: Exception, options: Args) -> Returned:
        """Return a failed task's result for an expected ``error``, or raise any other error."""
        if isinstance(error, (UserError, OSError, ValueError)):
            return {"failed": True, "msg": str(error)}
        raise error


class ObservingAction(GangAction):
    """An action that only observes a job: any error in it ends the watch, but not the job."""

    needs_gang = False
    #: Whether the job is still running after an error.
    follows_job = True

    def failure(self, error: Exception, options: Args) -> Returned:
        """Return a failed task's result. Its message contains the command to attach again."""
        known = isinstance(error, (UserError, OSError))
        ended = f"stopped following the job: {error if known else repr(error)}"
        message = f"{ended}; the job itself is not affected: {_attach_again(options)}"
        return {"failed": True, "left_running": self.follows_job, "msg": message}


def _attach_again(options: Args) -> str:
    """Explain how to follow the job again after the watch has ended."""
    job = str(options.get("job") or Path(str(options.get("run_dir", ""))).name)
    try:
        return f"attach again with `{suggestions.command('attach', job=job)}`"
    except ValueError:  # its logs are in a folder that is not named after a job
        return "attach to the job again"


class HostAction(_Action):
    """An action on a host: sends the programs of train/host and runs one of them, in one command.

    Results from hosts are untrusted input, so only their harmless parts are passed on.
    """

    _supports_check_mode = True

    #: Whether this is the first action of its plays. If so, it logs in before it starts its work,
    #: so that a login that fails or hangs is explained in time.
    logs_in: ClassVar[bool] = False

    def run(self, tmp: str | None = None, task_vars: Args | None = None) -> Returned:
        """Log in if needed, and run the action. Explain a failed connection in plain words."""
        variables = task_vars or {}
        if self.logs_in:
            connections.end_with_ansible()
            failed = login_check.failure_of(self, str(variables["inventory_hostname"]))
            if failed is not None:
                return _unreachable(failed)
        try:
            done = super().run(tmp, task_vars)
        except AnsibleConnectionFailure as error:
            return _unreachable(login_check.explain(str(error), self._connection))
        except UserError as error:
            return {"failed": True, "msg": str(error)}
        # Other values could be instructions to Ansible, such as add_host or ansible_facts.
        known = {*_OF_ANY_TASK, *results_of(self.name)}
        return {name: value for name, value in done.items() if name in known}

    def act(self, options: Args, task_vars: Args) -> Returned:
        """Run the action's program on the host with ``options``; see train/host/calls.py."""
        return self.call(options, task_vars)

    def call(self, options: Args, task_vars: Args, **more: Any) -> Returned:
        """Run the action's program on the host with ``options`` and ``more``; return its result.

        The result has only harmless values. Raise AnsibleConnectionFailure if the connection fails.
        """
        request = {
            "host": task_vars["inventory_hostname"],
            "names": task_vars["ansible_play_hosts_all"],
            **{name: value for name, value in options.items() if value is not None},
            **more,
            "call": self.name,
            "check": bool(self._task.check_mode),
        }
        python = host_programs.interpreter(task_vars, self._templar.template)
        command, program = host_programs.command_of(python, request)
        environment = self._compute_environment_string()
        answer = host_programs.ask(self, f"{environment} {command}", program)
        if answer.value is None:
            return login_check.without_result(self, answer)
        return host_programs.harmless(answer.value)


def _unreachable(failed: LoginFailure) -> Returned:
    return {"unreachable": True, "msg": failed.text}
