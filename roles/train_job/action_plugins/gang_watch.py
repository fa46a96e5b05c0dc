"""Follows all ranks of a gang from one task that runs once; train/control/watch.py does the work.

With a task for each host, Ansible would hold one fork a rank, and with fewer forks than ranks the
rest would not be watched. Here one worker process asks all hosts, over connections of their own.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import connection_loader
from ansible.template import Templar
from ansible.utils.display import Display

# The repository's own package: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.control import views, watch
from train.host import news, records


def _say(line: str) -> None:
    """Show a line, unless nobody reads what Ansible prints.

    Ansible's main process prints what its workers say in the thread that takes their results, and
    a closed pipe ends that thread: the playbook would wait for ever.
    """
    try:
        output = Path(f"/proc/{os.getppid()}/fd/1")
        if output.is_fifo():
            pipe = os.open(output, os.O_WRONLY | os.O_NONBLOCK)
            poll = select.poll()
            poll.register(pipe, 0)
            closed = bool(poll.poll(0))  # the one event without being asked for: nobody reads
            os.close(pipe)
            if closed:
                return
    except OSError:  # it has no output
        return
    Display().display(line)


class ActionModule(ActionBase):  # type: ignore[misc]
    """Follow the gang (``mode: follow``), or fetch the rest and write the result (``report``),
    or only fetch what there is (``fetch``).
    """

    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the action; its arguments are those of roles/train_job/tasks/watch.yml."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        self._hostvars = (task_vars or {})["hostvars"]
        self._connections: dict[str, Any] = {}
        # Variables are templated and plugins loaded: neither does Ansible do safely in two threads.
        self._connecting = threading.Lock()
        try:
            result.update(self._watch(self._task.args))
        except watch.BusyError as error:
            result.update(failed=True, msg=str(error))
        return result

    def _watch(self, args: dict[str, Any]) -> dict[str, Any]:
        run_dir = Path(args["run_dir"]).expanduser()
        result: dict[str, Any] = {}
        gang = watch.Gang(
            self._targets(args["hosts"]),
            run_dir,
            self._look,
            _say if args["mode"] == "follow" else lambda line: None,
            start_timeout=float(args["start_timeout"]),
            unreachable_timeout=float(args["unreachable_timeout"]),
            interval=float(args["interval"]),
            end_timeout=float(args.get("end_timeout", 0)),
        )
        if args["mode"] == "follow":
            verdict = gang.follow()
        elif args["mode"] == "fetch":
            verdict = gang.drain(watch.Verdict("fetched", None, ""))
        else:
            verdict = gang.drain(watch.Verdict(**args["verdict"]))
            job_result = watch.result_of(args["job"], verdict, gang.views, attempts=1)
            records.write_json(str(run_dir / "result.json"), job_result)
            result["result"] = job_result
        running = any(not view.final for view in gang.views)
        result.update(verdict=asdict(verdict), running=running)
        return result

    def _targets(self, hosts: list[str]) -> list[views.Target]:
        targets = []
        for host in hosts:
            variables = self._hostvars[host]
            rank = variables["__train_job_rank"]["rank"]
            start = variables.get("__train_job_start", {"ansible_job_id": ""})
            targets.append(
                views.Target(
                    host=str(host),
                    task=str(rank["task"]),
                    rank_dir=str(rank["rank_dir"]),
                    host_python=str(rank["host_python"]),
                    place=str(rank["place"]),
                    service=bool(rank["service"]),
                    start_error="" if "ansible_job_id" in start else str(start.get("msg")),
                )
            )
        return targets

    def _connect(self, host: str) -> Any:
        """Return a connection to ``host`` with the options that its variables give."""
        variables = dict(self._hostvars[host])
        templar = Templar(loader=self._loader, variables=variables)
        name = variables.get("ansible_connection") or self._task.connection
        play_context = self._play_context.copy()
        play_context.remote_addr = variables.get("ansible_host") or host
        connection = connection_loader.get(name, play_context, task_uuid=self._task._uuid)
        if connection is None:
            raise AnsibleError(f"there is no connection plugin {name!r} (host {host})")
        keys = {"timeout": play_context.timeout}
        if play_context.password:
            keys["password"] = play_context.password
        options = connection._resolve_option_variables(variables, templar)
        connection.set_options(task_keys=keys, var_options=options)
        shell_options = constants.config.get_plugin_vars("shell", connection._shell._load_name)
        connection._shell.set_options(
            var_options={key: variables[key] for key in shell_options if key in variables}
        )
        return connection

    def _look(
        self, target: views.Target, cursors: dict[str, Any], wait: float, interval: float
    ) -> dict[str, Any]:
        try:
            with self._connecting:
                if target.host not in self._connections:
                    self._connections[target.host] = self._connect(target.host)
            connection = self._connections[target.host]
            if connection.transport == "local":
                # This machine trains, too: a process for each look would cost it a step in fifty.
                return news.wait_for_news(cursors, wait, interval)
            launcher = f"{target.rank_dir}/{records.LAUNCHER_DIR}"
            words = [target.host_python, "-S", "-E", "-m", "host.news"]
            words += [json.dumps(cursors), str(wait), str(interval)]
            command = f"cd {shlex.quote(launcher)} && {shlex.join(words)}"
            shell = f"/bin/sh -c {shlex.quote(command)}"
            code, out, err = connection.exec_command(shell, sudoable=False)
        except AnsibleConnectionFailure as error:
            raise watch.UnreachableError(str(error)) from error
        if code:
            raise OSError(bytes(err).decode(errors="replace").strip()[-500:])
        return dict(json.loads(bytes(out)))
