"""Prepares what a host of the cluster needs to watch a job (``python -m train run --on HOST``).

The host gets this project, the script's files, and an inventory that contains only the variables
that a job needs. All of its values are resolved here, and none is a template there.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible import constants

from train.gang import COLLECTION, PACKAGE, REPOSITORY, connections
from train.gang.connections import Args
from train.gang.errors import UserError
from train.gang.packages import requested
from train.gang.plan import script_files
from train.gang.variables import job_variables

#: Stands for the first host of the gang, which is the chief.
FIRST = "chief"
#: The groups of hosts in the order of their ranks.
_KINDS = ("chief", "worker", "ps", "evaluator", "spare")
#: Variables that decide how a host is reached. None holds a password or the path of a key.
_REACHING = (
    *("ansible_host", "ansible_user", "ansible_python_interpreter", "ansible_become"),
    *("ansible_become_user", "ansible_become_method"),
)
#: Variables of the role that the other control node sets itself, or that name files on this one.
_OWN = {
    *("train_job_groups", "train_job_script", "train_job_module", "train_job_include"),
    *("train_job_requirements", "train_job_exclude", "train_job_runs_dir", "train_job_id"),
    *("train_job_attempt", "train_job_force", "train_job_metrics_dir", "train_job_controller"),
    *("train_job_args", "train_job_environment"),
}
#: Variables with which the packages of scripts are locked and installed.
_PACKAGES = ("tensorflow_index_url", "tensorflow_wheelhouse", "tensorflow_root")
#: The parts of this project that jobs need.
_PARTS = ("ansible.cfg", "galaxy.yml", "meta", "playbooks", "plugins", "requirements", "roles")
_LOCK = REPOSITORY / "requirements/controller.txt"
#: The time of all files of the project, so that its archive depends on their contents only.
_CHANGED_AT = 1_000_000_000
_LOOPBACK = re.compile(r"localhost|.+\.localhost|127\..*|::1")
#: Matches text that Ansible could take for a template.
_TEMPLATE = re.compile(r"\{[{%#]|^#jinja2:")


def prepare(play: connections.Play, args: Args) -> dict[str, object]:
    """Write the files for a host that is to watch a job, and return their paths.

    Raise UserError if the host cannot watch it. See ``plugins/modules/gang_controller.py``.
    """
    groups = {kind: list(args["groups"].get(kind) or ()) for kind in _KINDS}
    host = chosen(play, args["controller"], groups)
    names = set(job_variables.options()[0]) - {"train_job_groups", job_variables.ENVIRONMENT}
    members = [name for kind in _KINDS for name in groups[kind]]
    given = {name: play.given(name, sorted(names)) for name in dict.fromkeys(members)}
    arguments = job_variables.check(given, connections.written)
    _check_replacement(host, given)
    for name in given:
        _check_reach(play, host, name)
    values = {
        name: {**_values(play, name, given[name]), "train_job_args": arguments[name]}
        for name in given
    }
    folder = Path(constants.DEFAULT_LOCAL_TMP)
    project, lock = _project(folder), _LOCK.read_bytes()
    version = hashlib.sha256(project.read_bytes() + lock).hexdigest()[:12]
    inventory = folder / f"controller-{args['job']}.yml"
    _write(inventory, inventory_of(groups, values, host).encode())
    of_script: dict[str, object] = {"code": "", "requirements": {}, "words": []}
    if args["command"] == "run":
        of_script = _script(play, host, args, folder)
    return {
        "changed": False,
        "host": host,
        "root": str(play.values(host, "train_job_root")["train_job_root"]),
        "version": version,
        "project": str(project),
        "lock": {"path": str(_LOCK), "sha256": hashlib.sha256(lock).hexdigest()},
        "inventory": str(inventory),
        **of_script,
    }


def chosen(play: connections.Play, name: str, groups: Mapping[str, Sequence[str]]) -> str:
    """Return the inventory host that is to watch a job. Raise UserError if it is unknown.

    Args:
        name: the host, or FIRST for the first host of the gang.
        groups: the hosts of each task type.
    """
    members = [host for kind in _KINDS for host in groups[kind]]
    if name == FIRST and FIRST not in members:
        return members[0]
    if name not in members:
        raise UserError(
            f"--on {name}: the inventory has no such host in the groups chief, worker, ps, "
            f"evaluator and spare: choose one of {', '.join(members[:8])}"
        )
    return name


def _check_replacement(controller: str, given: Mapping[str, job_variables.Given]) -> None:
    """Raise UserError if ``controller`` would have to replace lost hosts."""
    if any(found.values.get(job_variables.REPLACE) for found in given.values()):
        raise UserError(
            f"--on {controller}: {job_variables.REPLACE} is set, but {controller} has neither your "
            "login to the cloud nor an inventory that can change: start the job without --on (with "
            f"--detach, if you like), or set {job_variables.REPLACE} to an empty string"
        )


def _check_reach(play: connections.Play, controller: str, host: str) -> None:
    """Raise UserError if ``controller`` cannot reach a host in the way that the inventory names."""
    plugin, address, _, _ = play.connection(host)
    plugin = plugin.rpartition(".")[2] or "ssh"
    if plugin == "local" and host == controller:
        raise UserError(
            f"--on {controller}: this host is the machine on which you are working "
            "(ansible_connection: local): use --detach instead, or choose another host"
        )
    if plugin not in ("ssh", "smart"):
        raise UserError(
            f"--on {controller}: {host} has the connection {plugin}, with which {controller} "
            "cannot reach it: use hosts with the connection ssh, or --detach without --on"
        )
    if _LOOPBACK.fullmatch(address):
        raise UserError(
            f"--on {controller}: the address of {host}, {address}, leads to a different machine "
            "on each host: set ansible_host to an address that every host can reach"
        )


def _values(play: connections.Play, host: str, given: job_variables.Given) -> dict[str, Any]:
    """Return the variables of a host for the other control node's inventory."""
    found = {
        name: value
        for name, value in given.values.items()
        if name not in _OWN and given.places[name] != job_variables.DEFAULT
    }
    found["train_job_environment"] = given.environment[0]
    ports = ("ssh_keys_port", "ansible_port")
    reaching = play.values(host, *_REACHING, *_PACKAGES, *ports)
    port = next((reaching[name] for name in ports if reaching.get(name)), None)
    found |= {name: value for name, value in reaching.items() if name not in ports}
    return found if port is None else {**found, "ansible_port": int(port)}


class _Writer(yaml.SafeDumper):
    """Writes values of Ansible's own types, and texts that are never templates."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: a value that occurs several times is written in full each time."""
        return True


def _text(writer: Any, text: str) -> Any:
    tag = "!unsafe" if _TEMPLATE.search(text) else "tag:yaml.org,2002:str"
    return writer.represent_scalar(tag, str(text), style='"')


_Writer.add_representer(str, _text)
_Writer.add_multi_representer(str, _text)
_Writer.add_multi_representer(
    dict, lambda writer, value: writer.represent_dict({str(n): v for n, v in value.items()})
)
_Writer.add_multi_representer(list, lambda writer, value: writer.represent_list(list(value)))
_Writer.add_multi_representer(tuple, lambda writer, value: writer.represent_list(list(value)))
_Writer.add_multi_representer(int, lambda writer, value: writer.represent_int(int(value)))
_Writer.add_multi_representer(float, lambda writer, value: writer.represent_float(float(value)))


def inventory_of(
    groups: Mapping[str, Sequence[str]], values: Mapping[str, Mapping[str, Any]], controller: str
) -> str:
    """Return an inventory in YAML in which ``controller`` is the machine that reads it.

    Args:
        groups: the hosts of each task type.
        values: the variables of each host. None of them is a template.
        controller: the inventory host.
    """
    members = {kind: hosts for kind, hosts in groups.items() if hosts}
    machines: dict[str, dict[str, Any]] = {name: dict(found) for name, found in values.items()}
    machines[controller].pop("ansible_port", None)
    machines[controller]["ansible_connection"] = "local"
    content = {
        "all": {
            "hosts": machines,
            "children": {kind: {"hosts": dict.fromkeys(names)} for kind, names in members.items()},
        }
    }
    return yaml.dump(content, Dumper=_Writer, allow_unicode=True, width=1 << 30, sort_keys=False)


def _script(play: connections.Play, host: str, args: Args, folder: Path) -> dict[str, object]:
    """Pack the script's files; return paths, and the words that run the script."""
    script = script_files.find_script(args["script"], str(args["module"]))
    words = ["--module", str(args["module"])] if args["module"] else []
    found: dict[str, object] = {"code": "", "requirements": {}}
    include = script_files.find_includes(args["include"])
    if script.path != script_files.WORKER or include:
        code = script_files.code_files(
            script.folder, include, list(args["exclude"]), float(args["code_limit_mb"])
        )
        archive = folder / f"controller-{args['job']}.tar.gz"
        script_files.pack(code, archive)
        found["code"] = str(archive)
        words += ["--script", "code" if args["module"] else f"code/{script.entry}"]
    if args["requirements"]:
        source = play.values(host, "tensorflow_wheelhouse_source").get(
            "tensorflow_wheelhouse_source"
        )
        if source:
            raise UserError(
                f"--on {host}: tensorflow_wheelhouse_source is {source}, a folder on this machine, "
                f"but {host} locks the script's packages: use a package index that {host} reaches "
                "(tensorflow_index_url), or start the job without --on"
            )
        path = requested.find(str(args["requirements"]), script.folder)
        found["requirements"] = _requirements(requested.read(path), folder, str(args["job"]))
        words += ["--requirements", "requirements.txt"]
    return {**found, "words": words}


def _requirements(wanted: requested.Requested, folder: Path, job: str) -> dict[str, str]:
    """Write requirements without references to other files. Return the paths by file name."""
    lines = {
        is_constraint: [
            f"{line.requirement}\n" for line in wanted.lines if line.is_constraint == is_constraint
        ]
        for is_constraint in (False, True)
    }
    head = [f"{option}\n" for option in wanted.indexes]
    head += ["-c constraints.txt\n"] if lines[True] else []
    texts = {"requirements.txt": head + lines[False], "constraints.txt": lines[True]}
    found = {}
    for name, text in texts.items():
        if text:
            path = folder / f"controller-{job}-{name}"
            _write(path, "".join(text).encode())
            found[name] = str(path)
    return found


def _project(folder: Path) -> Path:
    """Pack this project in the layout of an installed package, always with the same bytes."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as packed:
        for path, name in sorted(_project_files(), key=lambda pair: pair[1]):
            data = path.read_bytes()
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), _CHANGED_AT
            member.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            packed.addfile(member, io.BytesIO(data))
    archive = folder / "controller-project.tar"
    _write(archive, target.getvalue())
    return archive


def _project_files() -> Iterator[tuple[Path, str]]:
    """Yield the files of this project, with their paths on the other control node."""
    inside = Path("ansible_collections", *COLLECTION.split("."))
    places = [(PACKAGE, Path("train"))]
    places += [(REPOSITORY / part, inside / part) for part in _PARTS]
    for source, target in places:
        if source.is_file():
            yield source, str(target)
            continue
        for parent, folders, names in os.walk(source):
            folders[:] = [name for name in folders if name not in ("__pycache__", "collections")]
            for name in names:
                path = Path(parent, name)
                if path.suffix != ".pyc":
                    yield path, str(target / path.relative_to(source))


def _write(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
        stream.write(data)
