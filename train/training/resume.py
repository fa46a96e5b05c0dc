"""The start of a run: all ranks resume from the newest checkpoint that any of them has.

Each rank lists its checkpoint folder and sends the step of its newest checkpoint to the others. The
rank with the highest step reads its checkpoint and shares the state with all. Any disk of the gang
will do: the chief's, that of a rank that keeps a copy (TRAIN_CHECKPOINT_COPY), or a shared one.

If that checkpoint is damaged, all ranks choose again. If there is no checkpoint, the initial
weights may be those of an earlier training (--init-from): a checkpoint or a saved model, whose
variables are matched by the layers' names.
"""

from __future__ import annotations

import errno
import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import tensorflow as tf
from host.plain_text import note

from . import checkpoints
from .checkpoints import Checkpoint, DamagedError, Run, Writer, warn
from .cluster import Cluster, ConfigError, Launch
from .gang import Collective
from .resumption import Decision, Resumption, choose_resumption
from .settings import Settings
from .state import TrainingState, weights_of


class _Offer(TypedDict):
    """A rank's report to the others about its newest checkpoint, if any."""

    decision: str  # USE, REFUSE or START_OVER: a value of Decision
    fresh_start_at: int
    step: int
    copies: bool  # whether the rank keeps a copy
    token: str


@dataclass(frozen=True)
class _Candidate:
    """A rank's newest checkpoint that is not passed over, and the decision about it."""

    decision: Decision = Decision.START_OVER
    checkpoint: Checkpoint | None = None
    #: The reason for a refusal.
    refusal: str = ""


@dataclass
class Search:
    """The search for the checkpoint from which a run resumes; all ranks must create one.

    ``identity`` has ``data_sha256`` and the options that must be the same as in a checkpoint.
    ``steps_per_epoch`` is of the same data and options.
    """

    settings: Settings
    cluster: Cluster
    launch: Launch
    gang: Collective
    state: TrainingState
    identity: dict[str, Any]
    steps_per_epoch: int

    def __post_init__(self) -> None:
        """Derive fields from the options."""
        self._folder = self.settings.checkpoint_dir
        self._paths: list[Path] = []
        #: Why this rank cannot read or write its files, if so.
        self._refusal = ""
        self._resumption = choose_resumption(self.settings.resume, self.launch.attempt)
        self._writes = self.cluster.is_chief or self.launch.copies

    def begin(self) -> tuple[dict[str, Any] | None, str, Writer | None]:
        """Restore the variables of all ranks from the newest checkpoint, if any.

        Return the checkpoint's position, or None if the run begins at step 0; the name of the rank
        that had the checkpoint; and the writer of this rank's checkpoints, or None if this rank
        keeps none.

        Raise the same ConfigError in all ranks if the checkpoint does not match this run or is
        beyond its last step, if it is required but missing, if a folder or checkpoint cannot be
        read, if another process writes to the chief's folder, or if the chief cannot write its
        files for a reason other than a full disk.
        """
        if self.cluster.is_chief:
            self._refusal = self._obstacle()
        if self._writes and not self._refusal:
            with suppress(OSError):
                for left in self._folder.glob(f"{checkpoints.UNFINISHED}*"):  # from a killed run
                    left.unlink(missing_ok=True)
        try:
            self._paths = checkpoints.patiently(lambda: checkpoints.found(self._folder))
        except checkpoints.UNREADABLE as error:
            self._refusal = self._refusal or checkpoints.cannot_be_read(self._folder, error)
        candidate, rows, source, taken = self._choose(whole=False)
        while "damaged" in taken:  # any file may be damaged by now
            candidate, rows, source, taken = self._choose(whole=True)
        if "error" in taken:
            self.gang.part()
            raise ConfigError(f"{self.cluster.ranks[source]} cannot start: {taken['error']}")
        position = taken["position"]
        # In later attempts, the first one has used it.
        ignored = self.settings.init_from and position is not None and self.launch.attempt == 1
        if ignored and self.cluster.is_chief:
            own, other = candidate.checkpoint, f"the checkpoint of {self.cluster.ranks[source]}"
            origin = own.path if own and source == self.cluster.place else other
            warn(
                f"--init-from is ignored: resuming from {origin}; use --resume never or another "
                "--checkpoint-dir"
            )
        if position is not None or self.settings.init_from:
            self.gang.share(self.state.variables, source)
        writer = None
        shared = self._is_shared(rows[0]["token"], any(row["copies"] for row in rows))
        if self._writes and not shared:
            kept, run = self.settings.checkpoints_kept, Run(**taken["run"])
            writer = Writer(self._folder, kept, self.identity, run, self.state.layer_names)
            own = candidate.checkpoint
            if position and not (own and (own.run, own.step) == (run, position["step"])):
                # Save it on this host, too, so that losing one host does not lose it.
                writer.save(position["step"], self.state.snapshot(), position, taken["final"])
        return position, self.cluster.ranks[source], writer

    def _obstacle(self) -> str:
        """Return why the chief cannot write its checkpoints and model, or ''."""
        if not checkpoints.lock(self._folder):
            return (
                f"another process is writing checkpoints to {self._folder.absolute()}: wait "
                "until it ends, or use another --checkpoint-dir"
            )
        folders = {"--checkpoint-dir": self._folder}
        if self.settings.export != "none":
            folders["--model-dir"] = self.settings.model_dir
        for option, folder in folders.items():
            if reason := _write_error(folder):
                return f"{option} {folder} cannot be written: {reason}"
        return ""

    def _newest(self, whole: bool) -> _Candidate:
        """Return this rank's newest checkpoint that is not passed over; its arrays if ``whole``."""
        if self._refusal:
            return _Candidate(Decision.REFUSE, None, self._refusal)
        for path in list(self._paths):
            try:
                found = checkpoints.patiently(partial(checkpoints.read, path, whole))
            except FileNotFoundError:
                continue
            except DamagedError as error:
                self._pass_over(path, str(error))
                continue
            except checkpoints.UNREADABLE as error:
                # It may be the newest one, and intact.
                refusal = checkpoints.cannot_be_read(path, error)
                return _Candidate(Decision.REFUSE, None, refusal)
            is_from_job = found.run.is_new_of(self.launch.job)
            mismatch = found.mismatch(self.identity)
            decision = self._resumption.decide(
                is_from_job=is_from_job, fits=not mismatch, is_writer=self._writes
            )
            if decision is Decision.PASS_OVER:
                self._pass_over(path, mismatch)
            elif decision is not Decision.SKIP:
                return _Candidate(decision, found, mismatch)
        return _Candidate()

    def _pass_over(self, path: Path, reason: str) -> None:
        self._paths.remove(path)
        warn(f"ignoring {path}: {reason}")

    def _choose(self, whole: bool) -> tuple[_Candidate, list[_Offer], int, dict[str, Any]]:
        """Return this rank's candidate, all offers, the index of the best, and that rank's message.

        The message has the fields ``run``, ``position`` and, for a checkpoint, ``final``; otherwise
        only ``error`` or ``damaged``.
        """
        candidate = self._newest(whole)
        checkpoint, is_usable = candidate.checkpoint, candidate.decision is Decision.USE
        row: _Offer = {
            "decision": candidate.decision.value,
            # For checkpoints that a first attempt is to replace, only the time matters.
            "fresh_start_at": checkpoint.run.fresh_start_at if checkpoint else 0,
            "step": checkpoint.step if checkpoint and is_usable else 0,
            "copies": self.launch.copies and not self.cluster.is_chief,
            "token": secrets.token_hex(4),
        }
        rows = list(map(json.loads, self.gang.texts(json.dumps(row))))
        source = choose_source(rows, self._resumption)
        taken: dict[str, Any] = {}
        if source == self.cluster.place:
            try:
                latest = max(row["fresh_start_at"] for row in rows)
                taken = self._take(candidate) or self._start(latest)
            except ConfigError as error:
                taken = {"error": str(error)}
        return candidate, rows, source, json.loads(self.gang.from_rank(json.dumps(taken), source))

    def _take(self, candidate: _Candidate) -> dict[str, Any]:
        """Restore the checkpoint that this rank offered; return the message to the other ranks.

        Return {} if it offered none. Raise ConfigError if it refuses its checkpoint, cannot read
        it, or if that has more steps than this run.
        """
        if candidate.decision is Decision.REFUSE:
            raise ConfigError(candidate.refusal)
        found = candidate.checkpoint
        if found is None or candidate.decision is Decision.START_OVER:
            return {}
        try:
            arrays = checkpoints.patiently(lambda: checkpoints.read(found.path)).arrays
        except (DamagedError, FileNotFoundError) as error:
            self._pass_over(found.path, str(error))
            return {"damaged": True}
        except checkpoints.UNREADABLE as error:
            raise ConfigError(checkpoints.cannot_be_read(found.path, error)) from error
        epochs, per_epoch = self.settings.epochs, self.steps_per_epoch
        if found.step > epochs * per_epoch:
            least = -(-found.step // per_epoch)
            raise ConfigError(
                f"{found.path} is of step {found.step}, but --epochs {epochs} ends at step "
                f"{epochs * per_epoch}: use --epochs {least} or more, --resume never, or another "
                "--checkpoint-dir"
            )
        self.state.restore(arrays)
        return {"run": asdict(found.run), "position": found.position, "final": found.final}

    def _start(self, fresh_start_at: int) -> dict[str, Any]:
        """Begin at step 0, because no rank offers a checkpoint; return the message to the others.

        Set the initial weights of --init-from. ``fresh_start_at`` is the latest of these times in
        the checkpoints of all ranks. Raise ConfigError if a checkpoint is required.
        """
        if self._resumption is Resumption.REQUIRED:
            others = ", and none from another rank" if len(self.cluster.ranks) > 1 else ""
            missing = f"no intact checkpoint in {self._folder.absolute()}{others}"
            raise ConfigError(f"--resume required, but there is {missing}")
        if self.settings.init_from:
            values, line = _initial_values(self.settings.init_from, self.state)
            self.state.begin_with(values)
            note(f"{self.cluster.task}: {line}", sys.stdout)
        # Later than any other, regardless of the hosts' clocks.
        begun = max(int(time.time()), fresh_start_at + 1) if self._resumption.is_new_run else 0
        return {"run": {"job": self.launch.job, "fresh_start_at": begun}, "position": None}

    def _is_shared(self, token: str, copies: bool) -> bool:
        """Return whether this rank is to keep a copy, but has the same folder as the chief.

        ``copies`` is whether any rank keeps a copy. The chief creates a file whose name contains
        the chief's ``token``, and the other ranks check whether they see it.
        """
        if not copies:
            return False
        path, chief = self._folder / f"{checkpoints.UNFINISHED}{token}", self.cluster.is_chief
        if chief:
            with suppress(OSError):  # reported when a checkpoint is written
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
        self.gang.barrier()
        shared = False
        if self.launch.copies and not chief:
            with suppress(OSError):
                shared = path.exists()
        self.gang.barrier()
        if chief:
            with suppress(OSError):
                path.unlink()
        elif shared:
            note(
                f"{self.cluster.task}: not keeping a copy of the checkpoints, because the "
                "checkpoint folder is shared with the chief",
                sys.stdout,
            )
        return shared


def _write_error(folder: Path) -> str:
    """Return why no files can be written to a folder, or ''; create it if it does not exist.

    A full disk does not count, because it may have space when it is needed, nor does a stale
    handle of NFS.
    """
    # Other ranks delete unfinished checkpoints in a shared folder.
    probe = folder / f".probe-{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(b"probe")
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        may_pass = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ESTALE)
        return "" if may_pass else error.strerror or str(error)
    return ""


def choose_source(rows: Sequence[_Offer], resumption: Resumption) -> int:
    """Return the index of the first rank that refuses, or else of the rank with the best offer.

    The best offer is that of the run that was started last, then the one with the highest step,
    then the one with the lowest index.
    """

    def far(place: int) -> tuple[bool, bool, int, int]:
        row = rows[place]
        if row["decision"] == Decision.REFUSE.value:
            return True, False, 0, 0
        # All attempts of a job are one run, even if one of them could not see the checkpoints of
        # another and also started from scratch.
        began = 0 if resumption.is_new_run else row["fresh_start_at"]
        return False, row["decision"] == Decision.USE.value, began, row["step"]

    return max(range(len(rows)), key=far)


def _initial_values(path: str, state: TrainingState) -> tuple[dict[int, Any], str]:
    """Return initial values of the model's variables, by number, and a line about them for the log.

    A variable gets the values of the variable in ``path`` that has the same name, such as
    ``conv/kernel``, and the same shape. Raise ConfigError if ``path`` cannot be used.
    """
    if not Path(path).exists():
        raise ConfigError(f"--init-from: no such file: {path} in {Path.cwd()}")
    try:
        found = _numbered(_read(path))
    except Exception as error:  # errors from damage depend on the format
        reason = str(error).partition("\n")[0][:300]
        raise ConfigError(f"--init-from {path} cannot be read: {reason}") from error
    wanted = _numbered(zip(state.layer_names.values(), state.model_variables, strict=True))
    values, skipped = {}, []
    for number, (name, variable) in enumerate(wanted.items()):
        value = found.get(name)
        if value is not None and tuple(value.shape) == tuple(variable.shape):
            values[number] = value
        else:
            skipped.append(name[0])
    if not values:
        such = f"the names and shapes of this network, such as {skipped[0]}"
        raise ConfigError(f"--init-from {path} has no variables with {such}")
    line = f"{len(values)} of {len(wanted)} variables are initialized from {path}"
    return values, line + (f"; not {', '.join(skipped)}" if skipped else "")


def _read(path: str) -> Iterable[tuple[str, Any]]:
    """Return the names and values of the variables in a file or folder."""
    if path.endswith(".npz"):
        checkpoint = checkpoints.read(Path(path))
        return zip(checkpoint.names.values(), weights_of(checkpoint.arrays), strict=True)
    if Path(path).is_dir():
        variables = tf.saved_model.load(path).variables
    else:
        variables = tf.keras.models.load_model(path, compile=False).variables
    return [(variable.name.partition(":")[0], variable.numpy()) for variable in variables]


def _numbered(pairs: Iterable[tuple[str, Any]]) -> dict[tuple[str, int], Any]:
    """Return the values by name and by the number of earlier pairs with the same name."""
    seen: Counter[str] = Counter()
    numbered = {}
    for name, value in pairs:
        numbered[name, seen[name]] = value
        seen[name] += 1
    return numbered
