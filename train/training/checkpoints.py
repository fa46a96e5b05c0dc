"""Checkpoints: written in parallel with the training, atomically, and verified when read.

A checkpoint is a file ``ckpt-<step>.npz`` that ``numpy.load`` can open; docs/formats.md describes
its arrays. The chief writes it, and a rank that keeps a copy writes the same bytes. This module
does not import TensorFlow.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from host.plain_text import note

from .cluster import TrainingError

#: Numpy arrays by variable name.
Arrays = dict[str, Any]
T = TypeVar("T")

_NAME = re.compile(r"ckpt-([0-9]+)\.npz")
#: Prefix of the names of incomplete files, which no other process may use.
UNFINISHED = "unfinished-"
#: Prefix of the names of folders with checkpoints of runs that another run has replaced.
REPLACED = "replaced-"
#: Errors after which a file or folder may still be intact: nobody may conclude that it is damaged.
UNREADABLE = (OSError, MemoryError)
#: Seconds after which reading is tried again.
PAUSES_S = (0.5, 2.0)


@dataclass(frozen=True)
class Run:
    """The run that a checkpoint belongs to. A resumed run is still the same run."""

    #: Id of the job that started the run; empty without the launcher.
    job: str = ""
    #: Start time with ``--resume never``, in whole seconds of Unix time; otherwise 0. A run
    #: replaces runs with earlier times, whatever their steps.
    fresh_start_at: int = 0

    def is_new_of(self, job: str) -> bool:
        """Return whether this is a new run (--resume never) that ``job`` started."""
        return bool(self.fresh_start_at) and self.job == job


#: Stands for the run of a checkpoint that cannot be read. No job has this id.
_UNKNOWN = Run("?")


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint (docs/formats.md). ``arrays`` is empty if they were not read."""

    path: Path
    step: int
    identity: dict[str, object]
    position: dict[str, Any]
    final: bool
    run: Run
    names: dict[str, str]
    arrays: Arrays

    def mismatch(self, identity: Mapping[str, object]) -> str:
        """Describe in one line the first option in ``identity`` that differs, or return ''."""
        for name, value in identity.items():
            made_with = self.identity.get(name, value)  # an option that was added later
            if made_with == value:
                continue
            same = "the same options, "
            if name == "data_sha256":
                other = f"other data (their SHA-256 is {made_with}, not {value})"
            elif name == "order":
                other = f"another order of the examples (version {made_with}, not {value})"
                same = ""  # there is no option for it
            else:
                other = f"--{name.replace('_', '-')} {made_with}, not {value}"
            remedy = "--resume never, or another --checkpoint-dir"
            return f"{self.path} was written with {other}: use {same}{remedy}"
        return ""


class DamagedError(Exception):
    """A checkpoint cannot be used; the message gives the reason."""


def digest(values: Iterable[Any]) -> bytes:
    """Return the SHA-256 of the shapes, types and contents of numpy arrays, in the given order."""
    total = hashlib.sha256()
    for value in map(np.ascontiguousarray, values):
        total.update(f"{value.dtype.str}{value.shape}".encode())
        # As bytes, because bfloat16 does not support the buffer protocol.
        total.update(value.reshape(-1).view(np.uint8).data if value.size else b"")
    return total.digest()


def step_of(path: Path) -> int:
    """Return the step in the file name of a checkpoint."""
    return int(path.stem.partition("-")[2])


def found(folder: Path) -> list[Path]:
    """Return the paths of a folder's checkpoints, highest step first; [] if it does not exist."""
    try:
        paths = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(paths, key=step_of, reverse=True)


class _Content(io.FileIO):
    """A file that keeps the error of a failed read, which zipfile may report as damage."""

    failure: OSError | None = None

    def readinto(self, buffer: Any) -> int | None:
        try:
            return super().readinto(buffer)
        except OSError as error:
            self.failure = error
            raise

    def readall(self) -> bytes:
        try:
            return super().readall()
        except OSError as error:
            self.failure = error
            raise


def read(path: Path, whole: bool = True) -> Checkpoint:
    """Return the checkpoint in a file; the arrays are read and verified only if ``whole``.

    Raise FileNotFoundError if the file has been removed, DamagedError if its content cannot be
    used, and one of UNREADABLE if it could not be read, so that its content is unknown.
    """
    try:
        content = _Content(path)
    except IsADirectoryError as error:
        raise DamagedError(str(error)) from None
    with content:
        try:
            return _parse(path, io.BufferedReader(content), whole)
        except (DamagedError, MemoryError):
            raise
        except Exception as error:  # errors depend on which bits are damaged
            if content.failure is not None:
                raise content.failure from None
            raise DamagedError(str(error) or type(error).__name__) from None


def _parse(path: Path, stream: io.BufferedReader, whole: bool) -> Checkpoint:
    with stream, np.load(stream, allow_pickle=False) as loaded:
        about = json.loads(bytes(loaded["about"]))
        arrays = {n: loaded[n] for n in loaded.files if n != "about"} if whole else {}
    if whole and digest(arrays.values()).hex() != about["sha256"]:
        raise DamagedError("its SHA-256 does not match its arrays")
    run = Run(about["job"], about["anew_at"])
    same = {name: about[name] for name in ("step", "identity", "position", "final", "names")}
    return Checkpoint(path, **same, run=run, arrays=arrays)


def patiently(attempt: Callable[[], T]) -> T:
    """Return the result of ``attempt``, which is tried again after an error of UNREADABLE.

    A missing file is not such an error. Raise the last error.
    """
    for pause_s in PAUSES_S:
        try:
            return attempt()
        except FileNotFoundError:
            raise
        except UNREADABLE:
            time.sleep(pause_s)
    return attempt()


def cannot_be_read(path: Path, error: BaseException) -> str:
    """Return a line about a file or folder that ``error``, one of UNREADABLE, has kept unread."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return (
        f"{path.absolute()} cannot be read: {reason}: make it readable and start again, or use "
        "another --checkpoint-dir"
    )


def warn(text: str) -> None:
    """Write a warning to standard error."""
    note(f"warning: {text}")


def lock(folder: Path) -> bool:
    """Lock a folder for the life of this process; return False if another process has it locked."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # cannot be created (reported when needed), or a share without locks
    return True


class Writer:
    """Writes a rank's checkpoints in a separate thread, and removes the oldest of its run.

    The newest ``kept`` checkpoints of the run remain. All others that are in the way, those of
    other runs or of higher steps, are not removed but moved to a folder ``replaced-*``. ``names``
    has the names of the variables in the model, such as ``conv/kernel``, by their names in a
    checkpoint.
    """

    def __init__(
        self, folder: Path, kept: int, identity: dict[str, Any], run: Run, names: dict[str, str]
    ) -> None:
        self._folder, self._kept, self._run = folder, kept, run
        stored = {"job": run.job, "anew_at": run.fresh_start_at}  # the names in existing files
        self._about = {"identity": identity, **stored, "names": names}
        self._replaced = False
        self._aside: Path | None = None
        self._waiting: queue.Queue[tuple[Arrays, dict[str, Any]]] = queue.Queue(1)
        self._failure = ""
        threading.Thread(target=self._work, name="checkpoints", daemon=True).start()

    def save(
        self, step: int, arrays: Arrays, position: Any, final: bool = False, sha256: str = ""
    ) -> None:
        """Queue a checkpoint of ``step``; wait only if an earlier one is still queued.

        ``sha256`` is the hash of the arrays in hex, or empty if it has yet to be computed.
        """
        about = {"step": step, "position": position, "final": final, "sha256": sha256}
        self._waiting.put((arrays, {**self._about, **about}))

    def finish(self) -> None:
        """Wait until all checkpoints are written; raise TrainingError if the last one failed."""
        self._waiting.join()
        if self._failure:
            what = f"the last checkpoint could not be written to {self._folder}"
            raise TrainingError(f"{what}: {self._failure}")

    def _work(self) -> None:
        while True:
            arrays, about = self._waiting.get()
            try:
                self._write(arrays, about)
                self._failure = ""
            except Exception as error:
                # The training continues: an older checkpoint still exists, and space may be freed.
                reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
                self._failure = reason
                what = f"the checkpoint of step {about['step']} was not written"
                with suppress(OSError):  # the log may be on the same full disk
                    warn(f"{what} to {self._folder}: {reason}")
            finally:
                self._waiting.task_done()

    def _write(self, arrays: Arrays, about: dict[str, Any]) -> None:
        step = about["step"]
        about["sha256"] = about["sha256"] or digest(arrays.values()).hex()
        text = np.frombuffer(json.dumps(about).encode(), np.uint8)
        self._folder.mkdir(parents=True, exist_ok=True)
        # A process of another host may share the folder and have the same pid.
        unfinished = self._folder / f"{UNFINISHED}{os.getpid()}-{secrets.token_hex(4)}"
        try:
            with unfinished.open("wb") as stream:
                np.savez(stream, about=text, **arrays)
                stream.flush()
                os.fsync(stream.fileno())
            path = self._folder / f"ckpt-{step}.npz"
            # Older runs are set aside before the first checkpoint of this run gets its name, so
            # that two runs never mix.
            for other in [] if self._replaced else found(self._folder):
                run = self._run_of(other)
                if run is not None and run.fresh_start_at < self._run.fresh_start_at:
                    self._set_aside(other)
            self._replaced = True
            if path.exists() and self._run_of(path) not in (None, self._run):
                self._set_aside(path)
            unfinished.rename(path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # so that the new name survives a power failure
        finally:
            os.close(descriptor)
        paths = [path for path in found(self._folder) if self._run_of(path) == self._run]
        newer = [path for path in paths if step_of(path) > step]
        with suppress(OSError):  # a leftover does no harm to the new file
            for path in newer:
                # It is from an attempt whose state this one could not see. It may be intact: the
                # folder may have been unmounted when this attempt began.
                self._set_aside(path)
                warn(f"{path} is of a later step than this run: moved to {self._aside}")
        for path in paths[len(newer) + self._kept :]:
            with suppress(OSError):
                path.unlink()

    def _run_of(self, path: Path) -> Run | None:
        """Return the run of a checkpoint: None if it is damaged or missing, _UNKNOWN if unread."""
        try:
            return read(path, whole=False).run
        except (DamagedError, FileNotFoundError):
            return None
        except UNREADABLE:
            return _UNKNOWN

    def _set_aside(self, path: Path) -> None:
        """Move a checkpoint out of the way."""
        if self._aside is None:
            name = f"{REPLACED}{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
            aside = self._folder / name
            aside.mkdir()
            self._aside = aside
        path.rename(self._aside / path.name)
