"""Ansible action plugin: the control node's half of the module ``training_data``.

It lets the module look at all entries in one call. Only for what is missing does it read the
sources, send what the host lacks in chunks over Ansible's own connection, and have the module put
it in place.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import os
import re
import shlex
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

#: Unit of what is sent, in bytes; what a broken run loses at most. The module has the same.
CHUNK = 16 * 2**20
#: Files are sent together up to this size, in bytes (as in the module), and up to this number.
BATCH = 256 * 2**20
BATCH_FILES = 5000
#: Seconds between two words about a long transfer.
WORD_EVERY_S = 10.0
#: How often another run that sends the same is waited for, and seconds without a byte more after
#: which it has stopped.
OTHER_RUNS = 5
GROWING_S = 5.0
#: Exit code of the host's command when the file that it should append to has another size.
OTHER_SIZE = 75

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
SHA256 = re.compile(r"[0-9a-f]{64}")
ARCHIVES = {
    ".tar": "tar",
    ".tar.gz": "tar",
    ".tgz": "tar",
    ".tar.bz2": "tar",
    ".tar.xz": "tar",
    ".zip": "zip",
    ".gz": "gz",
}


class OtherRunError(Exception):
    """Another run appends to the file of this name on the host."""


@dataclass(frozen=True)
class Published:
    """A file as its authors publish it.

    Attributes:
        sha256: of the file.
        content: SHA-256 of what the .gz file holds, by which a copy that was compressed anew is
            known; empty where that is not told.
    """

    sha256: str
    content: str = ""


#: Known data sets: what their files are called and must hold.
DATASETS: dict[str, dict[str, Published]] = {
    "fashion-mnist": {
        "train-images-idx3-ubyte.gz": Published(
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        "train-labels-idx1-ubyte.gz": Published(
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        "t10k-images-idx3-ubyte.gz": Published(
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        "t10k-labels-idx1-ubyte.gz": Published(
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    },
    "mnist": {
        "train-images-idx3-ubyte.gz": Published(
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        "train-labels-idx1-ubyte.gz": Published(
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        "t10k-images-idx3-ubyte.gz": Published(
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        "t10k-labels-idx1-ubyte.gz": Published(
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    },
    "cifar-10-python": {
        "cifar-10-python.tar.gz": Published(
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
        ),
    },
    "cifar-10-binary": {
        "cifar-10-binary.tar.gz": Published(
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
        ),
    },
}


@dataclass(frozen=True)
class Entry:
    """An entry of ``training_data``, checked.

    Attributes:
        src: folder or file on this machine; None for data that are mounted on the host.
        mounted: folder on the host; empty for data that are brought.
        unpack: how the file is to be unpacked; empty for not at all.
    """

    name: str
    src: Path | None
    mounted: str
    dataset: str
    sha256: str
    dest: str
    unpack: str

    def identity(self, sha256: str = "") -> str:
        """Return what tells these data from others, by the given hash if they have none."""
        what = f"dataset:{self.dataset}" if self.dataset else f"sha256:{self.sha256 or sha256}"
        return what + (";unpacked" if self.unpack else "")

    @property
    def needs_source(self) -> bool:
        """Whether the source must be read to tell what the data are."""
        return self.src is not None and not self.dataset and not self.sha256


@dataclass(frozen=True)
class File:
    """A file of the data: where it is here, its path among the data, size and SHA-256."""

    source: str
    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Source:
    """What an entry has to bring."""

    sha256: str
    files: list[File]
    unpacked_bytes: int = 0
    unpacked_files: int = 0


# What was asked for


def check_entries(entries: list[Any], resolve: Callable[[str], str]) -> list[Entry]:
    """Return the entries, checked.

    Args:
        entries: as they stand in ``training_data``.
        resolve: makes a path of this machine absolute.

    Raises:
        AnsibleActionFail: one is wrong, or two are at odds.
    """
    checked: list[Entry] = []
    for number, entry in enumerate(entries):
        where = f"training_data[{number}]"
        if isinstance(entry, dict) and entry.get("name"):
            where = f"training_data {entry['name']!r}"
        try:
            checked.append(check_entry(entry, resolve))
        except ValueError as error:
            raise AnsibleActionFail(f"{where}: {error} Nothing was changed.") from None
    for one in checked:
        for other in checked:
            if one is other:
                continue
            if one.name == other.name:
                raise AnsibleActionFail(f"training_data has two entries {one.name!r}: rename one.")
            if f"{one.dest}/".startswith(f"{other.dest}/"):
                raise AnsibleActionFail(
                    f"training_data: {one.name!r} would lie in {other.name!r} ({one.dest} in"
                    f" {other.dest}): set dest of one of them."
                )
    return checked


def check_entry(entry: Any, resolve: Callable[[str], str]) -> Entry:
    """Return one entry, checked; see `check_entries`.

    Raises:
        ValueError: with what is wrong, and the remedy.
    """
    known = {"name", "src", "mounted", "dataset", "sha256", "dest", "unpack"}
    if not isinstance(entry, dict) or set(entry) - known:
        raise ValueError(f"an entry has the keys {', '.join(sorted(known))} and no others.")
    given = {key: value for key, value in entry.items() if value not in (None, "")}
    name, src = str(given.get("name", "")), str(given.get("src", ""))
    dataset, sha256 = str(given.get("dataset", "")), str(given.get("sha256", "")).lower()
    dest = os.path.normpath(str(given.get("dest", name)))
    if not NAME.fullmatch(name):
        raise ValueError("name must be letters, digits and the characters ._- .")
    if ("src" in given) == ("mounted" in given):
        raise ValueError(
            "it needs either src (a folder or file on the control node) or mounted (a folder on the"
            " hosts)."
        )
    if re.match(r"[a-z][a-z0-9+.-]*://", src):
        raise ValueError(
            f"src is an address ({src}), and nothing is fetched from a network: bring the file to"
            " the control node (curl -LO) and name it."
        )
    if dataset and (dataset not in DATASETS or "mounted" in given):
        raise ValueError(f"dataset goes with src and is one of {', '.join(DATASETS)}.")
    if sha256 and not SHA256.fullmatch(sha256):
        raise ValueError("sha256 must be 64 hexadecimal digits.")
    if dataset and sha256:
        raise ValueError("with dataset, sha256 is known: leave it out.")
    if dest.startswith(("/", "..", ".training_data")) or dest == ".":
        raise ValueError("dest must be a path below training_data_root.")
    mounted = str(given.get("mounted", ""))
    if mounted and (not mounted.startswith("/") or "dest" in given or "unpack" in given):
        raise ValueError("mounted must be an absolute path, and goes without dest and unpack.")
    archive = next(iter(DATASETS[dataset])) if dataset else src
    kind = next((kind for suffix, kind in ARCHIVES.items() if archive.endswith(suffix)), "")
    wanted = given.get("unpack", kind in ("tar", "zip"))
    if not isinstance(wanted, bool):
        wanted = str(wanted).lower() in ("true", "yes", "on", "1")
    if wanted and (not kind or len(DATASETS.get(dataset, [None])) > 1):
        raise ValueError(f"unpack is for one file with the ending {', '.join(ARCHIVES)}.")
    return Entry(
        name=name,
        src=Path(resolve(src)) if src else None,
        mounted=mounted,
        dataset=dataset,
        sha256=sha256,
        dest=dest,
        unpack=kind if wanted else "",
    )


# What is on this machine


class Hashes:
    """SHA-256 of files of this machine, noted across runs by size, time and inode."""

    def __init__(self, notes: Path) -> None:
        self._path = notes
        try:
            self._known: dict[str, list[Any]] = json.loads(notes.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self._known = {}
        self._seen: dict[str, list[Any]] = {}

    def of(self, path: str) -> tuple[int, str]:
        """Return size and SHA-256 of a file."""
        found = Path(path).stat()
        sign = [found.st_size, found.st_mtime_ns, found.st_ino]
        note = self._known.get(path, [])
        if note[:3] != sign:
            with Path(path).open("rb") as stream:
                note = [*sign, hashlib.file_digest(stream, "sha256").hexdigest()]
        self._seen[path] = note
        return found.st_size, note[3]

    def save(self) -> None:
        """Note what was seen; a place that cannot be written to only costs time."""
        if self._seen == self._known:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = self._path.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps(self._seen), encoding="utf-8")
            new.replace(self._path)
        except OSError:
            pass


def tree_hash(files: list[File]) -> str:
    """Return the hash of a folder: of the lines that ``sha256sum`` prints, sorted by path."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(b"%s  %s\n" % (file.sha256.encode(), os.fsencode(file.path)))
    return digest.hexdigest()


def walk(folder: str) -> Iterator[str]:
    """Yield the paths of all files below a folder, sorted; links are followed.

    Raises:
        ValueError: something cannot be read as a file, or links go round in a circle.
    """

    def stop(error: OSError) -> None:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}.")

    paths = []
    for current, folders, names in os.walk(folder, onerror=stop, followlinks=True):
        for name in folders:
            full = Path(current, name)
            if full.is_symlink() and Path(current).resolve().is_relative_to(full.resolve()):
                raise ValueError(f"{full} leads to a folder that it is in: remove the link.")
        for name in names:
            full = Path(current, name)
            if "\n" in name or "\\" in name:
                raise ValueError(
                    f"{str(full)!r} has a character in its name that is not supported."
                )
            if not full.is_file():
                raise ValueError(f"{full} is no file (a broken link, a socket?): remove it.")
            paths.append(os.path.relpath(full, folder))
    yield from sorted(paths, key=os.fsencode)


def read_source(entry: Entry, hashes: Hashes) -> Source:
    """Return what an entry brings, with all of it hashed and compared.

    Raises:
        ValueError: it is not there, or not what was asked for.
    """
    assert entry.src is not None
    if not entry.src.exists():
        raise ValueError(f"src is {entry.src}, which is not there: correct it, or bring the file.")
    if entry.dataset:
        files = read_dataset(entry, hashes)
    elif entry.src.is_dir():
        files = [
            File(str(entry.src / path), path, *hashes.of(str(entry.src / path)))
            for path in walk(str(entry.src))
        ]
        if not files:
            raise ValueError(f"the folder {entry.src} is empty.")
        if entry.unpack:
            raise ValueError(f"{entry.src} is a folder: leave unpack out, or set it to false.")
    else:
        files = [File(str(entry.src), entry.src.name, *hashes.of(str(entry.src)))]
    whole = files[0].sha256 if len(files) == 1 and entry.src.is_file() else tree_hash(files)
    if not entry.dataset and entry.src.is_file() and not entry.sha256:
        raise ValueError(
            f"an archive or file needs sha256. Take it from where {entry.src.name} is published;"
            f" this copy has {whole}."
        )
    if entry.sha256 and whole != entry.sha256:
        hint = "a folder's hash is described in the role's README" if entry.src.is_dir() else ""
        raise ValueError(
            f"{entry.src} has SHA-256 {whole}, expected {entry.sha256}. Bring it to the control"
            f" node again, or correct sha256{hint and f' ({hint})'}."
        )
    return Source(whole, files, *(unpacked_size(entry, files[0]) if entry.unpack else (0, 0)))


def read_dataset(entry: Entry, hashes: Hashes) -> list[File]:
    """Return the files of a known data set, each compared with what is published.

    Raises:
        ValueError: one is missing or another.
    """
    assert entry.src is not None
    published = DATASETS[entry.dataset]
    files = []
    for name, wanted in published.items():
        path = entry.src if entry.src.is_file() and len(published) == 1 else entry.src / name
        if not path.is_file():
            raise ValueError(
                f"{path} is not there: src of {entry.dataset} must have {', '.join(published)}."
            )
        size, found = hashes.of(str(path))
        if found != wanted.sha256:
            content = content_hash(path) if wanted.content else ""
            if content != wanted.content or not content:
                inside = f" (and holds {content}, expected {wanted.content})" if content else ""
                raise ValueError(
                    f"{path} has SHA-256 {found}, expected {wanted.sha256}{inside}: it is not the"
                    f" published file of {entry.dataset}. Bring it to the control node again."
                )
        files.append(File(str(path), name, size, found))
    return sorted(files, key=lambda file: os.fsencode(file.path))


def content_hash(path: Path) -> str:
    """Return the SHA-256 of what a .gz file holds; an empty string if it is none."""
    try:
        with gzip.open(path) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except (OSError, EOFError):
        return ""


def unpacked_size(entry: Entry, file: File) -> tuple[int, int]:
    """Return bytes and files that come out of an archive.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        if entry.unpack == "zip":
            with zipfile.ZipFile(file.source) as packed:
                sizes = [info.file_size for info in packed.infolist()]
        elif entry.unpack == "tar":
            with tarfile.open(file.source) as packed_tar:
                sizes = [member.size for member in packed_tar]
        else:
            with gzip.open(file.source) as stream:
                sizes = [sum(len(data) for data in iter(lambda: stream.read(2**20), b""))]
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError) as error:
        raise ValueError(
            f"{file.source} cannot be unpacked: {error}. Set 'unpack: false' to have it as it is."
        ) from error
    return sum(sizes), len(sizes)


class Sources:
    """The sources of this machine; each is read once in a run of Ansible, for all hosts."""

    def __init__(self, run_folder: Path, notes_folder: Path) -> None:
        self._run_folder = run_folder
        self._notes_folder = notes_folder

    def get(self, entry: Entry) -> Source:
        """Return what an entry brings.

        Raises:
            AnsibleActionFail: it is not there, or not what was asked for.
        """
        key = hashlib.sha256(repr(entry).encode()).hexdigest()[:16]
        noted = self._run_folder / f"training_data-{key}.json"
        with (self._run_folder / f"training_data-{key}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not noted.exists():
                new = noted.with_suffix(".new")
                new.write_text(json.dumps(self._read(entry)), encoding="utf-8")
                new.replace(noted)
        data = json.loads(noted.read_text(encoding="utf-8"))
        if "error" in data:
            raise AnsibleActionFail(f"training_data {entry.name!r}: {data['error']}")
        return Source(**{**data, "files": [File(**file) for file in data["files"]]})

    def _read(self, entry: Entry) -> dict[str, Any]:
        key = hashlib.sha256(str(entry.src).encode()).hexdigest()[:16]
        hashes = Hashes(self._notes_folder / f"{key}.json")
        try:
            source = read_source(entry, hashes)
        except (ValueError, OSError) as error:
            return {"error": str(error)}
        hashes.save()
        return asdict(source)


# What is sent


def batches(files: list[File], numbers: list[int]) -> Iterator[list[int]]:
    """Yield the numbers of the files that are sent together, in order."""
    batch: list[int] = []
    size = 0
    for number in numbers:
        if batch and (size + files[number].size > BATCH or len(batch) == BATCH_FILES):
            yield batch
            batch, size = [], 0
        batch.append(number)
        size += files[number].size
    if batch:
        yield batch


class Blob:
    """Files one after another, as one stream."""

    def __init__(self, files: list[File]) -> None:
        self._files = files
        self.size = sum(file.size for file in files)

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes from ``offset`` on, fewer than ``length`` only at the end.

        Raises:
            AnsibleActionFail: a file has become shorter.
        """
        parts: list[bytes] = []
        start = 0
        for file in self._files:
            end = start + file.size
            if length and end > offset:
                count = min(length, end - offset)
                with Path(file.source).open("rb") as stream:
                    stream.seek(offset - start)
                    data = stream.read(count)
                if len(data) < count:
                    raise AnsibleActionFail(f"{file.source} was changed during the run. Run again.")
                parts.append(data)
                offset += count
                length -= count
            start = end
            if not length:
                break
        return b"".join(parts)

    def agrees_until(self, hashes: list[list[Any]]) -> int:
        """Return how many bytes, of what came in pieces with these sizes and hashes, are right."""
        offset = 0
        for length, sha256 in hashes:
            data = self.read(offset, length)
            if len(data) < length or hashlib.sha256(data).hexdigest() != sha256:
                break
            offset += length
        return offset


class ActionModule(ActionBase):  # type: ignore[misc]
    """Look first; read, send and put in place what is missing."""

    TRANSFERS_FILES = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> Any:
        """Run the action; see the module's documentation for the arguments."""
        super().run(tmp, task_vars)
        self._vars = task_vars or {}
        # A worker outlives an ansible-playbook that is killed, and would go on for hours.
        self._parent = os.getppid()
        self._args = dict(self._task.args)
        if self._args.get("step") == "remove":
            return self._call()
        entries = check_entries(self._args.get("entries") or [], self._loader.path_dwim)
        sources = Sources(
            Path(constants.DEFAULT_LOCAL_TMP), Path(constants.ANSIBLE_HOME, "training_data")
        )
        shown = [self._as_shown(entry, sources) for entry in entries]
        result = self._call(entries=shown)
        if result.get("failed"):
            return result
        found = {seen["name"]: seen for seen in result.pop("found")}
        missing = [entry for entry in entries if not found[entry.name]["ready"]]
        # All sources are read before anything is changed.
        read = {entry.name: sources.get(entry) for entry in missing if entry.src is not None}
        brought = []
        for entry in missing:
            if entry.src is None:  # in check mode only: mounted and not verified yet
                brought.append({"name": entry.name, "bytes": 0, "sent": 0})
                continue
            done = self._bring(entry, read[entry.name])
            if done.get("failed"):
                return done
            brought.append(done)
        result["changed"] = any(entry.src is not None for entry in missing)
        result["brought"] = brought
        result["paths"] = {name: seen["path"] for name, seen in found.items()}
        return result

    def _as_shown(self, entry: Entry, sources: Sources) -> dict[str, Any]:
        """Return an entry as the module wants it."""
        sha256 = sources.get(entry).sha256 if entry.needs_source else ""
        return {
            "name": entry.name,
            "dest": entry.dest,
            "mounted": entry.mounted,
            "sha256": entry.sha256,
            "identity": entry.identity(sha256),
        }

    def _call(self, **changes: Any) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module(
            module_name="ansible.legacy.training_data",
            module_args={**self._args, **changes},
            task_vars=self._vars,
        )
        return result

    def _bring(self, entry: Entry, source: Source) -> dict[str, Any]:
        """Bring one entry; return what came, or the module's failure."""
        manifest = self._send_manifest(entry, source)
        for _ in range(OTHER_RUNS):
            try:
                return self._bring_at_once(entry, source, manifest)
            except OtherRunError as error:
                part = str(error)
                self._wait_while_growing(part)
        raise AnsibleActionFail(
            f"Other runs write to {part} on this host time and again: let them end first."
        )

    def _wait_while_growing(self, part: str) -> None:
        """Return once no other run sends to this host any more."""
        last = None
        while True:
            command = f"stat -c %s {shlex.quote(part)} 2>/dev/null || echo 0"
            size = self._low_level_execute_command(command)["stdout"].strip()
            if size == last:
                return
            last = size
            time.sleep(GROWING_S)

    def _bring_at_once(self, entry: Entry, source: Source, manifest: str) -> dict[str, Any]:
        """Bring one entry; return what came, or the module's failure.

        Raises:
            OtherRunError: another run sends the same to this host.
            AnsibleActionFail: the host cannot take it.
        """
        planned = self._call(entries=[], step="plan", manifest=manifest)
        if planned.get("failed"):
            return planned
        numbers = planned["missing"]
        done = {
            "name": entry.name,
            "bytes": sum(source.files[number].size for number in numbers),
            "sent": 0,
        }
        if self._task.check_mode:
            return done
        word = Word(f"{self._vars.get('inventory_hostname')}: {entry.name}", done["bytes"])
        hashes = planned["part_hashes"]
        groups = list(batches(source.files, numbers)) or [[]]
        for number, batch in enumerate(groups):
            blob = Blob([source.files[index] for index in batch])
            done["sent"] += self._send(blob, planned["part"], hashes, word)
            hashes = []
            taken = self._call(
                entries=[],
                step="take",
                manifest=manifest,
                batch=batch,
                last=number == len(groups) - 1,
            )
            if taken.get("failed"):
                return taken
        return done

    def _send_manifest(self, entry: Entry, source: Source) -> str:
        """Put on the host what the entry has to bring; return the file's path there."""
        shell = self._connection._shell
        if shell.tmpdir is None:
            self._make_tmp_path()
        path: str = shell.join_path(shell.tmpdir, f"{entry.name}.json")
        manifest = {
            "name": entry.name,
            "dest": entry.dest,
            "identity": entry.identity(source.sha256),
            "files": [(file.path, file.size, file.sha256) for file in source.files],
            "unpack": entry.unpack,
            "unpacked_bytes": source.unpacked_bytes,
            "unpacked_files": source.unpacked_files,
        }
        self._transfer_data(path, json.dumps(manifest))
        self._fixup_perms2((shell.tmpdir, path))
        return path

    def _send(self, blob: Blob, part: str, hashes: list[list[Any]], word: Word) -> int:
        """Append to ``part`` on the host what it lacks of the files; return the bytes sent.

        Raises:
            OtherRunError: another run sends the same to this host.
            AnsibleActionFail: the host cannot take it.
        """
        target = shlex.quote(part)
        offset = start = blob.agrees_until(hashes)
        word.add(start)
        if offset < sum(length for length, _ in hashes):
            self._execute(f"truncate -s {offset} {target}", None, part)
        while offset < blob.size:
            if os.getppid() != self._parent:
                raise AnsibleActionFail("ansible-playbook has ended. Run it again.")
            data = blob.read(offset, CHUNK)
            size = f'"$(stat -c %s {target} 2>/dev/null || echo 0)"'
            command = f"[ {size} -eq {offset} ] || exit {OTHER_SIZE}; cat >> {target}"
            self._execute(command, data, part)
            offset += len(data)
            word.add(len(data))
        return offset - start

    def _execute(self, command: str, data: bytes | None, part: str) -> None:
        done = self._low_level_execute_command(command, in_data=data)
        if done["rc"] == OTHER_SIZE:
            raise OtherRunError(part)
        if done["rc"] != 0:
            reason = (done["stderr"] or done["stdout"]).strip() or f"exit code {done['rc']}"
            raise AnsibleActionFail(
                f"{part} cannot be written on this host: {reason}. What has come stays and is used"
                " by the next run: free space, or mend what the message names, and run again."
            )


class Word:
    """Says now and then how far a long transfer is."""

    def __init__(self, what: str, size: int) -> None:
        self._what = what
        self._size = size
        self._came = 0
        self._last = time.monotonic()

    def add(self, count: int) -> None:
        """Note that so many bytes more are there."""
        self._came += count
        if time.monotonic() - self._last > WORD_EVERY_S:
            self._last = time.monotonic()
            Display().display(f"{self._what}: {self._came / 1e6:.0f} of {self._size / 1e6:.0f} MB")
