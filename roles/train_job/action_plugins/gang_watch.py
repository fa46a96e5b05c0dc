"""Follows all ranks of a gang from one task that runs once; see train/gang/watch/follow.py.

With a task for each host, Ansible would hold one fork a rank, and with fewer forks than ranks the
rest would not be watched. Here one worker process asks all hosts, over connections of their own.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

# The repository's own package: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.gang import connections, notify, reports
from train.gang.plan import ranks as plan
from train.gang.watch import diagnosis, follow, listen, outcome, restarts, views
from train.host import news, probe, records

#: Seconds that a host has to connect to all ranks.
PROBE_TIMEOUT = 3.0


class ActionModule(ActionBase):  # type: ignore[misc]
    """Follow the gang (``mode: follow``), or fetch the rest and write the result (``report``),
    or only bring the logs (``listen``), or tell that a job is over (``over``).
    """

    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the action; its arguments are those of roles/train_job/tasks/watch.yml."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        self._hostvars = (task_vars or {})["hostvars"]
        self._hosts = connections.Hosts(self, task_vars or {})
        try:
            result.update(self._watch(self._task.args))
        except follow.BusyError as error:
            result.update(failed=True, msg=str(error))
        except Exception as error:  # whatever it is, it ends the watch and not the job
            told = (
                str(error) if isinstance(error, (follow.WatchEndedError, OSError)) else repr(error)
            )
            result.update(
                failed=True,
                left_running=self._task.args["mode"] in ("follow", "report"),
                msg=f"the watch has ended: {told}; the job is left as it is: attach to it again",
            )
        return result

    def _watch(self, args: dict[str, Any]) -> dict[str, Any]:
        if args["mode"] == "listen":
            return self._listen(args)
        run_dir = Path(args["run_dir"]).expanduser()
        if args["mode"] == "over":
            ended = records.read_json(str(run_dir / restarts.RESULT_FILE))
            return {"warnings": self._notify(ended, run_dir, ["end"]) if ended else []}
        result: dict[str, Any] = {}
        gang = follow.Gang(
            self._targets(args["hosts"], args["ranks"], self._planned(run_dir)),
            run_dir,
            self._look,
            connections.say if args["mode"] == "follow" else lambda line: None,
            start_timeout=float(args["start_timeout"]),
            unreachable_timeout=float(args["unreachable_timeout"]),
            interval=float(args["interval"]),
            end_timeout=float(args.get("end_timeout", 0)),
            straggler_factor=float(args.get("straggler_factor", 1.5)),
            peers=self._peers(run_dir) if args["mode"] == "follow" else {},
            probe=self._ask,
            disconnected_timeout=float(args.get("disconnected_timeout", 0)),
            log_limit=int(float(args["log_limit_mb"]) * 2**20),
        )
        if args["mode"] == "follow":
            if not args["ranks"]:  # attach knows it from the hosts
                manifest, _ = plan.read_manifest(run_dir.name, run_dir.parent)
                records.write_json(str(run_dir / plan.MANIFEST_FILE), plan.staged(manifest))
            verdict = gang.follow()
        else:
            verdict = gang.drain(outcome.Verdict(**args["verdict"]))
            if args["trouble"]:
                told = f"its results were not fetched: {args['trouble']}: attach to it again"
                verdict = replace(verdict, message=f"{verdict.message}; {told}")
            job_result = outcome.result_of(
                args["job"], verdict, gang.views, attempts=int(args["attempt"])
            )
            path = run_dir / restarts.RESULT_FILE
            known = records.read_json(str(path))
            records.write_json(str(path), job_result)
            result["result"] = job_result
            if known is None:  # who looks at a job that is over makes no news
                events = self._events(job_result, run_dir)
                result["warnings"] = self._notify(job_result, run_dir, events)
        running = any(not view.final for view in gang.views)
        result.update(verdict=asdict(verdict), running=running)
        return result

    def _listen(self, args: dict[str, Any]) -> dict[str, Any]:
        """Bring logs; the arguments are those of roles/train_job/tasks/logs.yml."""
        targets: list[views.Target] = []
        for rank in args["ranks"]:
            host = rank["seen_by"][0]  # not all ranks of a machine need have an inventory host
            targets += self._targets([host], {host: rank}, {})
        heard = listen.listen(
            targets,
            Path(args["run_dir"]).expanduser(),
            self._look,
            log_from={str(rank["task"]): int(rank["log_from"]) for rank in args["ranks"]},
            follow=bool(args["follow"]),
            start_timeout=float(args["start_timeout"]),
            unreachable_timeout=float(args["unreachable_timeout"]),
            interval=float(args["interval"]),
            log_limit=int(float(args["log_limit_mb"]) * 2**20),
        )
        return asdict(heard)

    def _events(self, result: dict[str, Any], run_dir: Path) -> list[str]:
        """Return what is to be told: the attempt's end, the job's unless another one follows."""
        if result["state"] != "failed":
            return ["end"]
        decision = restarts.decide(result, run_dir)
        wrapped = restarts.ENV_WRAPPER in os.environ
        again = wrapped and decision is not None and not decision.why_not
        return ["failure"] if again else ["failure", "end"]

    def _notify(self, result: dict[str, Any], run_dir: Path, events: list[str]) -> list[str]:
        """Tell of the job's result, and return what went wrong with that."""
        hosts = [rank["host"] for rank in result["ranks"]]
        environments, command, webhook = self._hosts.notification(hosts)
        told = []
        for event in events:
            payload = notify.payload_of(
                event,
                job=result["job"],
                attempt=result["attempts"],
                state=result["state"],
                message=result["message"],
                culprit=result["culprit"],
                metrics=result["metrics"],
                hosts=hosts,
                run_dir=run_dir,
                environments=environments,
            )
            tell = notify.notify if event == "end" else notify.notify_soon
            told.append(tell(event, command, webhook, payload))
        return [line for line in told if line]

    def _planned(self, run_dir: Path) -> dict[str, dict[str, Any]]:
        """Return the ranks of the attempt as they were planned, by inventory host."""
        manifest = records.read_json(str(run_dir / plan.MANIFEST_FILE)) or {"ranks": []}
        return {rank["host"]: rank for rank in manifest["ranks"]}

    def _targets(
        self, hosts: list[str], ranks: dict[str, Any], planned: dict[str, dict[str, Any]]
    ) -> list[views.Target]:
        """Return the ranks to follow: what was planned, and where each lies, which its host says.

        Raises:
            ReportError: a host said something malformed.
        """
        targets = []
        for host in hosts:
            variables = self._hostvars[host]
            rank = ranks[host] if ranks else variables["__train_job_rank"]["rank"]
            start = variables.get("__train_job_start", {"started": True})
            error = "" if start.get("started") else str(start.get("msg"))
            error = str(rank.get("start_error") or error)
            rank = {**reports.rank(rank), **planned.get(host, {})}
            # A host speaks for itself alone, whatever place it says that it is.
            names = ("ansible_connection", "ansible_host", "ansible_port", "ansible_user")
            where = [str(variables.get(name, "")) for name in names]
            where[1] = where[1] or (host if where[0] != "local" else "")
            targets.append(
                views.Target(
                    host=str(host),
                    task=rank["task"],
                    rank_dir=rank["rank_dir"],
                    host_python=rank["host_python"],
                    place=" ".join([*where, rank["place"]]),
                    service=rank["service"],
                    start_error=reports.bounded(error),
                    attempt=int(rank.get("attempt", 1)),
                )
            )
        return targets

    def _peers(self, run_dir: Path) -> diagnosis.Peers:
        """Return where the ranks are for one another; none where a manifest does not say it."""
        manifest = records.read_json(str(run_dir / plan.MANIFEST_FILE)) or {}
        for tf_config in manifest.get("tf_config", {}).values():
            return diagnosis.peers_of(tf_config["cluster"])
        return {}

    def _look(
        self, target: views.Target, cursors: dict[str, Any], wait: float, interval: float
    ) -> dict[str, Any]:
        if self._hosts.is_here(target.host, "news"):
            # This machine trains, too: a process for each look would cost it a step in fifty.
            return news.wait_for_news(cursors, wait, interval)
        return self._run(target, "news", json.dumps(cursors), str(wait), str(interval))

    def _ask(self, target: views.Target, peers: diagnosis.Peers) -> dict[str, Any]:
        if self._hosts.is_here(target.host, "probe"):
            return probe.look(target.rank_dir, dict(peers), PROBE_TIMEOUT)
        return self._run(target, "probe", target.rank_dir, json.dumps(peers), str(PROBE_TIMEOUT))

    def _run(self, target: views.Target, program: str, *arguments: str) -> dict[str, Any]:
        """Run one of the launcher's programs on a rank's host and return what it prints."""
        words = [target.host_python, "-S", "-E", "-m", f"host.{program}", *arguments]
        launcher = f"{target.rank_dir}/{records.LAUNCHER_DIR}"
        return self._hosts.run(target.host, program, words, launcher)
