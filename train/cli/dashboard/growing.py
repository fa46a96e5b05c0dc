"""Reads the files of a job that is running, again and again, without reading anything twice."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from train.cli import report
from train.gang.job_records import (
    LOAD_DIR,
    MANIFEST_FILE,
    RESULT_FILE,
    Load,
    Manifest,
    ResultRecord,
    read_manifest,
    read_result,
)
from train.host import plain_text, progress_records
from train.host.progress_records import Progress

#: About how many records of progress to keep of all ranks, and at least of each rank; likewise for
#: records of load.
_PROGRESS, _PROGRESS_LEAST = 3_000, 60
_LOAD, _LOAD_LEAST = 1_500, 30
_Record = TypeVar("_Record")


class Records(Generic[_Record]):
    """The records in a growing file. If there are too many, they are thinned evenly.

    Args:
        parse: returns the records in lines.
        phase: returns the phase of a record; the first and the last record of a phase are kept.
        most: about how many records to keep.
    """

    def __init__(
        self,
        path: Path,
        parse: Callable[[str], list[_Record]],
        phase: Callable[[_Record], object],
        most: int,
    ) -> None:
        self._path, self._parse, self._phase, self._most = path, parse, phase, most
        self._offset, self._inode = 0, 0
        self.records: list[_Record] = []

    def read(self) -> bool:
        """Read the records that were added since the last call; return whether there were any."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._offset, self._inode = 0, status.st_ino  # a full file is replaced
            if status.st_size == self._offset:
                return False
            stream.seek(self._offset)
            data = stream.read(status.st_size - self._offset)
        data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        lines = data.splitlines()
        every = 1 + len(lines) // (2 * self._most)
        text = b"\n".join(lines[::-every][::-1]).decode("utf-8", "replace")
        self.records += self._parse(text)
        while len(self.records) > 2 * self._most:
            self.records = self._thinned()
        return bool(lines)

    def _thinned(self) -> list[_Record]:
        """Return about half of the records."""
        phases = [self._phase(record) for record in self.records]
        last = len(phases) - 1
        kept = [
            record
            for at, record in enumerate(self.records)
            if at % 2 == 0
            or at == last
            or phases[at - 1] != phases[at]
            or phases[at + 1] != phases[at]
        ]
        return kept if len(kept) < 0.75 * len(self.records) else self.records[::2]


def _progress_of(text: str) -> list[Progress]:
    return [
        record
        for record in progress_records.parse_progress(text)
        if isinstance(record.get("t", 0.0), (int, float))
    ]


class _AttemptReader:
    """Reads the files of an attempt."""

    def __init__(self, folder: Path, number: int, planned_at: float | None, ranks: int) -> None:
        self._folder, self._number, self._planned_at = folder, number, planned_at
        self._most = max(_PROGRESS_LEAST, _PROGRESS // max(1, ranks))
        self._most_load = max(_LOAD_LEAST, _LOAD // max(1, ranks))
        self._progress: dict[str, Records[Progress]] = {}
        self._load: dict[str, Records[Load]] = {}
        self._first: int | None = None

    def read(self) -> bool:
        """Read the records that were added; return whether there were any."""
        for path in self._folder.glob("progress/*.jsonl"):
            if path.stem not in self._progress:
                reader = Records(path, _progress_of, lambda record: record.get("phase"), self._most)
                self._progress[path.stem] = reader
        for path in self._folder.glob(f"{LOAD_DIR}/*.jsonl"):
            if path.stem not in self._load:
                load = Records(path, report.loads_of, lambda _: None, self._most_load)
                self._load[path.stem] = load
        grown = [reader.read() for reader in self._progress.values()]
        grown += [reader.read() for reader in self._load.values()]
        return any(grown)

    def files(self, result: ResultRecord | None) -> report.AttemptFiles:
        """Return what is known about the attempt."""
        progress = {task: self._progress[task].records for task in report.in_order(self._progress)}
        steps = [
            record["step"] for seen in progress.values() for record in seen if "step" in record
        ]
        if steps:  # the first ones may have been thinned
            self._first = min(steps) if self._first is None else min(self._first, *steps)
            steps = [self._first, max(steps)]
        return report.AttemptFiles(
            number=self._number,
            planned_at=self._planned_at,
            result=result,
            steps=steps,
            progress=progress,
            logs=report.last_lines(self._folder, result),
            load={task: self._load[task].records for task in report.in_order(self._load)},
        )


class GrowingJob:
    """The files of a job, which may be running.

    Attributes:
        manifest: the job's manifest.
        attempts: its attempts, as for a report.
        events: its events.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._seen: list[object] = []
        self._readers: list[_AttemptReader] = []
        self.manifest: Manifest = {}
        self.attempts: list[report.AttemptFiles] = []
        self.events = report.Events(run_dir)

    def read(self) -> bool:
        """Read all changes; return whether there were any.

        Raise FileNotFoundError if the job has no manifest.
        """
        seen = [_version(self._run_dir / name) for name in (MANIFEST_FILE, RESULT_FILE)]
        if seen[0] is None:
            raise FileNotFoundError(2, "no such job", str(self._run_dir))
        is_new = seen != self._seen
        if is_new:
            manifest = read_manifest(self._run_dir)
            if manifest is None:
                raise FileNotFoundError(2, "no such job", str(self._run_dir))
            if manifest.get("attempt") != self.manifest.get("attempt") or not self._readers:
                self._open(manifest)
            self.manifest, self._seen = manifest, seen
        grown = [is_new, self.events.read(), *(reader.read() for reader in self._readers)]
        if any(grown):
            results = [read_result(folder) for folder in self._folders]
            pairs = zip(self._readers, results, strict=True)
            self.attempts = [reader.files(result) for reader, result in pairs]
        return any(grown)

    def _open(self, manifest: Manifest) -> None:
        """Find the files of all attempts."""
        last = manifest["attempt"]
        names = (path.name for path in self._run_dir.glob("attempts/*"))
        earlier = {int(name) for name in names if plain_text.is_number(name)} - {last}
        planned = {about["attempt"]: about["planned_at"] for about in manifest.get("attempts", [])}
        folders = {number: self._run_dir / "attempts" / str(number) for number in sorted(earlier)}
        folders[last] = self._run_dir
        self._folders = list(folders.values())
        ranks = len(folders) * len(manifest.get("ranks", []))
        self._readers = [
            _AttemptReader(folder, number, planned.get(number), ranks)
            for number, folder in folders.items()
        ]


def _version(path: Path) -> object:
    """Return a value that changes with a file; None without the file."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns, status.st_size
    return None
