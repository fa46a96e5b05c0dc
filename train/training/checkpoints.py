"""Checkpoints: written beside the training, whole or not at all, proven when they are read.

A checkpoint is one file, ``ckpt-<step>.npz``, which ``numpy.load`` opens: an array for each
variable (``model.0000`` and on, in Keras' order, then ``optimizer.<number>``) and ``about``, the
bytes of a JSON object with ``step``, ``sha256`` over the arrays, ``identity`` (the options it was
made with), ``position`` (where in the run it is) and ``final``. Only the chief reads and writes: a
folder that the ranks share is as good as disks of their own. No TensorFlow here.
"""

from __future__ import annotations

import json
import os
import queue
import re
import sys
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .cluster import ConfigError, TrainingError
from .digests import digest

_NAME = re.compile(r"ckpt-(\d+)\.npz")
_UNFINISHED = "unfinished-"


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds; see the module for its parts."""

    path: Path
    step: int
    arrays: dict[str, Any]
    identity: dict[str, Any]
    position: dict[str, Any]
    final: bool


class DamagedError(Exception):
    """A checkpoint cannot be used; the message says why."""


def step_of(path: Path) -> int:
    """Return the step in a checkpoint's name."""
    return int(path.stem.partition("-")[2])


def found(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest (of the highest step) first."""
    paths = [path for path in folder.glob("ckpt-*.npz") if _NAME.fullmatch(path.name)]
    return sorted(paths, key=step_of, reverse=True)


def read(path: Path) -> Checkpoint:
    """Return the checkpoint in a file.

    Raises:
        DamagedError: it was cut off, changed, or is none.
        FileNotFoundError: it was removed meanwhile.
    """
    try:
        with np.load(path, allow_pickle=False) as loaded:
            arrays = {name: loaded[name] for name in loaded.files}
        about = json.loads(bytes(arrays.pop("about")))
        intact = digest(arrays.values()).hex() == about["sha256"]
        result = Checkpoint(
            path, about["step"], arrays, about["identity"], about["position"], about["final"]
        )
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise DamagedError(str(error) or type(error).__name__) from None
    if not intact:
        raise DamagedError("its SHA-256 is not that of its arrays")
    return result


def newest(folder: Path, identity: Mapping[str, Any]) -> Checkpoint | None:
    """Return the newest checkpoint that is whole; of each that is not, warn on standard error.

    Args:
        folder: where they are; it may be missing.
        identity: the options that a checkpoint must have been made with, and ``data_sha256``.

    Raises:
        ConfigError: it was made with other options or data; it names one of them.
    """
    for path in found(folder):
        try:
            checkpoint = read(path)
        except DamagedError as error:
            print(f"warning: {path} is passed over: {error}", file=sys.stderr, flush=True)
            continue
        for name, value in identity.items():
            made_with = checkpoint.identity.get(name, value)
            if made_with == value:
                continue
            other = f"--{name.replace('_', '-')} {made_with}, not {value}"
            if name == "data_sha256":
                other = f"other data (their SHA-256 is {made_with}, not {value})"
            raise ConfigError(
                f"{path} was made with {other}: "
                "take the same, --resume never, or another --checkpoint-dir"
            )
        return checkpoint
    return None


class Writer:
    """Writes the chief's checkpoints in a thread of its own, and removes the oldest.

    Args:
        folder: made when it is missing; what a killed run has left unfinished there is removed.
        kept: how many of the newest stay.
        identity: the options of this run.
    """

    def __init__(self, folder: Path, kept: int, identity: Mapping[str, Any]) -> None:
        self._folder, self._kept, self._identity = folder, kept, dict(identity)
        for left in folder.glob(f"{_UNFINISHED}*"):
            left.unlink(missing_ok=True)
        self._waiting: queue.Queue[tuple[int, Mapping[str, Any], dict[str, Any]]] = queue.Queue(1)
        self._failure: OSError | None = None
        self._last = -1
        self._thread: threading.Thread | None = None

    def save(
        self, step: int, arrays: Mapping[str, Any], position: Mapping[str, Any], final: bool = False
    ) -> None:
        """Hand over a checkpoint of ``step``; waits only while an earlier one waits, too."""
        about = {
            "step": step,
            "identity": self._identity,
            "position": dict(position),
            "final": final,
        }
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
            self._thread.start()
        self._waiting.put((step, arrays, about))

    def finish(self) -> None:
        """Wait until all is written.

        Raises:
            TrainingError: the last checkpoint could not be written.
        """
        self._waiting.join()
        if self._failure is not None:
            raise TrainingError(
                f"the last checkpoint could not be written in {self._folder}: "
                f"{self._failure.strerror}"
            )

    def _work(self) -> None:
        while True:
            step, arrays, about = self._waiting.get()
            try:
                self._write(step, arrays, about)
                self._failure = None
            except OSError as error:
                # The training goes on: an older checkpoint is there still, and space may come.
                self._failure = error
                print(
                    f"warning: the checkpoint of step {step} was not written in {self._folder}: "
                    f"{error.strerror}",
                    file=sys.stderr,
                    flush=True,
                )
            finally:
                self._waiting.task_done()

    def _write(self, step: int, arrays: Mapping[str, Any], about: dict[str, Any]) -> None:
        about["sha256"] = digest(arrays.values()).hex()
        text = np.frombuffer(json.dumps(about).encode(), np.uint8)
        self._folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._folder / f"{_UNFINISHED}{os.getpid()}"
        try:
            with unfinished.open("wb") as stream:
                np.savez(stream, about=text, **arrays)
                stream.flush()
                os.fsync(stream.fileno())
            unfinished.rename(self._folder / f"ckpt-{step}.npz")
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # so that the new name outlives a power cut
        finally:
            os.close(descriptor)
        # Of higher steps than this one there can only be what --resume never replaces, or what
        # was damaged.
        paths = found(self._folder)
        newer = [path for path in paths if step_of(path) > step]
        for path in [*newer, *paths[len(newer) + self._kept :]]:
            path.unlink(missing_ok=True)
