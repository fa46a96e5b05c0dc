"""Logs a job to MLflow (``--mlflow URI``) from the events that a display shows.

MLflow (requirements/mlflow.txt) is optional and slow to import. A separate thread imports and calls
it, fed by a bounded deque. Its errors become notices, and the job continues.
"""

from __future__ import annotations

import importlib.util
import os
import posixpath
import re
import shlex
import sys
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from train.cli.display import JsonDisplay
from train.cli.job import Event, Result
from train.gang import REPOSITORY
from train.gang.errors import UserError
from train.gang.job_records import MANIFEST_FILE, Manifest, read_manifest, read_result
from train.host import frameworks, records

SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "file", "databricks")
#: The default for MLFLOW_EXPERIMENT_NAME.
EXPERIMENT = "tensorflow-ansible"
#: Settings for MLflow, unless the user has set them: send no statistics, print nothing between a
#: job's events, and give up soon.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_ALLOW_FILE_STORE": "true",
}
#: MLflow's states of ended jobs.
STATUSES = {"completed": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_PHASES = (*records.ALIVE_PHASES, *records.FINAL_PHASES)
ARTIFACTS = ("report.html", "result.json", "manifest.json")
#: Maximum number of events to queue; the oldest are dropped.
WAITING = 10_000
#: Seconds before a retry after a failure, that the end of a job waits for logging, and between two
#: batches of events.
PAUSE, LIMIT, INTERVAL = 15.0, 30.0, 1.0


def check(uri: str) -> None:
    """Raise UserError if MLflow is not installed or ``uri`` is not a valid tracking URI."""
    if uri.partition(":")[0].partition("+")[0] not in SCHEMES:
        raise UserError(
            f"--mlflow {_masked(uri)} is not a tracking URI: it must begin with one of "
            f"{', '.join(f'{scheme}:' for scheme in SCHEMES)}, such as --mlflow sqlite:///mlflow.db"
        )
    if importlib.util.find_spec("mlflow") is None:
        lock = REPOSITORY / "requirements/mlflow.txt"
        words = [sys.executable, "-m", "pip", "install", "--require-hashes", "-r", str(lock)]
        raise UserError(f"--mlflow needs MLflow: install it with `{shlex.join(words)}`")


def _masked(text: str) -> str:
    """Return a text in which logins and the values of parameters in URLs are masked."""
    without_login = re.sub(r"//\S*@", "//***@", text)
    return re.sub(r"([?&;#][\w.%-]+=)[^\s&;#'\")]+", r"\1***", without_login)


class TrackedDisplay:
    """Passes events to a display and logs them to MLflow."""

    def __init__(self, display: JsonDisplay, uri: str, run_dir: Path) -> None:
        self._display, self._uri, self._run_dir = display, uri, run_dir
        self._events: deque[Event] = deque(maxlen=WAITING)
        self._result: Result | None = None
        self._errors: deque[str] = deque()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def event(self, event: Event) -> None:
        """Show an event and queue it for logging."""
        self._display.event(event)
        # A job in the queue may never start.
        if event.kind == "restart" or event.data.get("phase") in _PHASES:
            self._events.append(event)
        self._show_errors(event.job)

    def result(self, result: Result) -> None:
        """Log and show how the job ended."""
        self._result = result
        self._ending.set()
        self._thread.join(LIMIT)
        if self._thread.is_alive():
            self._errors.append(f"logging did not finish within {LIMIT:g} s")
        self._show_errors(result.job)
        self._display.result(result)

    def _show_errors(self, job: str) -> None:
        while self._errors:
            text = f"MLflow: {self._errors.popleft()}; the job is not affected"
            data = {"kind": "mlflow", "task": None, "text": text}
            self._display.event(Event("notice", job, "", data))

    def _work(self) -> None:
        """Log events until the job has ended. Of consecutive errors, only the first is reported."""
        run: _Run | None = None
        pending: deque[Event] = deque(maxlen=WAITING)
        failing, ended = False, None
        while ended is None:
            self._ending.wait(PAUSE if failing else INTERVAL)
            ended = self._result
            while self._events:
                pending.append(self._events.popleft())
            try:
                if pending:
                    run = run or _Run(self._uri, self._run_dir)
                    run.log(pending)
                pending.clear()
                failing = False
                if run and ended and ended.state in STATUSES:  # a job that was left goes on
                    run.end(ended)
            except Exception as error:
                if not failing:
                    reason = (str(error) or type(error).__name__).splitlines()[0]
                    self._errors.append(_masked(reason)[:500])
                failing = True


class _Run:
    """The run in MLflow that belongs to the job. It is created unless it exists."""

    def __init__(self, uri: str, run_dir: Path) -> None:
        manifest = read_manifest(run_dir)
        if manifest is None:
            raise FileNotFoundError(f"{run_dir / MANIFEST_FILE} does not exist")
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow import entities
        from mlflow.tracking import MlflowClient

        self._entities, self._client, self._run_dir = entities, MlflowClient(uri), run_dir
        self._task = manifest["ranks"][0]["task"]
        self._last: dict[str, Any] = {}
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        existing = self._client.get_experiment_by_name(name)
        if existing:
            experiment = existing.experiment_id
        else:
            _, local, path = uri.partition("sqlite:///")
            # By default, MLflow would store files in the current folder.
            folder = (Path(path).absolute().parent / "mlartifacts").as_uri() if local else None
            experiment = self._client.create_experiment(name, artifact_location=folder)
        tags = {"train.job": manifest["job"], "train.created_at": str(manifest["created_at"])}
        wanted = " and ".join(f"tags.`{tag}` = '{value}'" for tag, value in tags.items())
        runs = self._client.search_runs([experiment], wanted, max_results=1)
        began = int(1000 * manifest["created_at"])
        new = {"run_name": manifest["job"], "start_time": began, "tags": tags}
        run = runs[0] if runs else self._client.create_run(experiment, **new)
        self._id = run.info.run_id
        self._client.update_run(self._id, status="RUNNING")
        self._tag(state="running", attempts=manifest["attempt"])
        params = params_of(manifest).items()
        missing = [entities.Param(*param) for param in params if param[0] not in run.data.params]
        self._client.log_batch(self._id, params=missing)

    def _tag(self, **tags: object) -> None:
        for name, value in tags.items():
            if value is not None:
                self._client.set_tag(self._id, f"train.{name}", value)

    def log(self, events: Iterable[Event]) -> None:
        """Log restarts and the records of the chief, or else of the first worker."""
        metrics: list[Any] = []
        last = self._last
        for event in events:
            if event.kind == "restart":
                self._tag(attempts=event.data["attempt"])
            elif event.task == self._task and event.data["progress"] != last:
                before, last = metrics_of(last), event.data["progress"]
                at, step = int(1000 * event.data["t"]), last.get("step", last.get("epoch", 0))
                values = metrics_of(last)
                if last.get("source") == "console":
                    # Within an epoch, these may be values of the previous epoch.
                    values = {n: value for n, value in values.items() if value != before.get(n)}
                metrics += [self._entities.Metric(*value, at, step) for value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)
        self._last = last

    def end(self, result: Result) -> None:
        """Log how the job ended."""
        ended = read_result(self._run_dir) or {}
        cause = {name: ended.get(name) for name in ("root_cause", "cause")}
        self._tag(state=result.state, **(cause if result.state == "failed" else {}))
        for path in (self._run_dir / name for name in ARTIFACTS):
            if path.exists():
                self._client.log_artifact(self._id, str(path))
        self._client.set_terminated(self._id, STATUSES[result.state])


def params_of(manifest: Manifest) -> dict[str, str]:
    """Return the parameters with which a job was started, as MLflow params."""
    known: dict[str, Any] = {**manifest}
    params = {name: known[name] for name in ("script", "seed", "keras", "code_sha256")}
    params["framework"] = known.get("framework", frameworks.TENSORFLOW)
    params["arguments"] = shlex.join(manifest["arguments"])
    for host, arguments in manifest.get("rank_arguments", {}).items():
        params[f"arguments.{host}"] = shlex.join(arguments)
    params["hosts"] = list(dict.fromkeys(rank["host"] for rank in manifest["ranks"]))
    params["ranks"] = len(manifest["ranks"])
    for part in ("git", "versions"):
        params |= {f"{part}.{name}": value for name, value in (known.get(part) or {}).items()}
    texts = {n: ", ".join(v) if isinstance(v, list) else str(v) for n, v in params.items()}
    return {name: text[:6000] for name, text in texts.items() if text}


def metrics_of(progress: Any) -> dict[str, float]:
    """Return the numbers in a progress record under names that MLflow accepts."""
    names = ("epoch", "loss", "examples_per_s", "steps_per_s", "memory_mb")
    values = {name: progress[name] for name in names if progress.get(name) is not None}
    values |= progress.get("metrics") or {}
    taken = {re.sub(r"[^\w\-. :/]", "_", name): float(value) for name, value in values.items()}
    return {posixpath.normpath(f"/{n}").lstrip("/") or "_": value for n, value in taken.items()}
