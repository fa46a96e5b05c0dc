#!/usr/bin/python
"""Ansible module: training data on a host, verified by hash and put in place in one step.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: training_data
short_description: Verify training data on a host and put them in place
description:
  - Other modules copy or download the files to C(ROOT/.training_data/NAME/tree); this one verifies
    them, unpacks an archive without a way out of its folder, and puts them in place by a rename.
  - Files that others put into the folder stay.
options:
  root:
    description: Folder of all data on the host.
    type: path
    required: true
  entries:
    description: What the role's filters return for C(training_data).
    type: list
    elements: dict
    default: []
  state:
    description:
      - V(checked) reports which data are there; mounted data are verified.
      - V(staged) prepares the folder for the files of the one entry, with those that are there.
      - V(placed) verifies what was copied there, and puts it in place.
      - V(absent) removes all that was ever placed below O(root), and nothing else.
    type: str
    choices: [checked, staged, placed, absent]
    default: checked
  verify:
    description: Whether data that are there are read and compared with their hashes.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
  diff_mode:
    support: partial
    details: Shows why the data are placed.
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Check which data are there
  training_data:
    root: ~/train/data
    entries: "{{ training_data | training_data_entries(playbook_dir) }}"
  register: checked
"""

RETURN = r"""
missing:
  description: Names of the data that are not there as they should be, each with the reason.
  type: dict
  returned: O(state) is V(checked)
paths:
  description: Where each of the data lies on the host, by name.
  type: dict
  returned: O(state) is V(checked)
staging:
  description: The folder that the files are to be copied to.
  type: str
  returned: O(state) is V(staged)
left:
  description: Folders that have files of others, which were not removed.
  type: list
  elements: str
  returned: O(state) is V(absent)
"""

import json
import os
import shutil
import stat
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.data_setup import data
from ansible.module_utils.data_setup.data import DataError, Place
from ansible.module_utils.data_setup.unpacking import unpack

KERAS_FOLDER = "~/.keras/datasets"


def keras_links(entry: Dict[str, Any], place: Place) -> Dict[str, str]:
    """Return the links by which keras.datasets finds the data, and what each leads to."""
    folder = os.path.expanduser(KERAS_FOLDER)
    wanted = entry.get("keras") or {}
    return {os.path.join(folder, n): os.path.join(place.target, t) for n, t in wanted.items()}


def leads_to(link: str, target: str) -> bool:
    """Whether a link leads to its file, or another file of that size is in its place."""
    try:
        return os.path.samefile(link, target) or os.path.getsize(link) == os.path.getsize(target)
    except OSError:
        return False


def make_link(link: str, target: str, name: str) -> None:
    """Make a link, in the place of another link."""
    if leads_to(link, target):
        return
    if os.path.lexists(link) and not os.path.islink(link):
        raise DataError(
            "%s is there, and is not the published file of %r: move it away, or leave 'keras' out."
            % (link, name)
        )
    os.makedirs(os.path.dirname(link), exist_ok=True)
    new = "%s.%d" % (link, os.getpid())
    os.symlink(target, new)
    os.replace(new, link)


def why_missing(entry: Dict[str, Any], place: Place, verify: bool) -> str:
    """Return why data are not there as they should be; an empty string if they are."""
    marker, folder = data.read_marker(place), entry["mounted"] or place.target
    if not marker:
        return "was not placed yet"
    if marker["identity"] != entry["identity"]:
        return "other data are there"
    for path, note in data.noted(marker).items():
        reason: str = data.differs(folder, path, note, verify)
        if reason:
            return reason
    links = keras_links(entry, place).items()
    return next(
        ("%s does not lead to it" % n for n, target in links if not leads_to(n, target)), ""
    )


def check_mounted(entry: Dict[str, Any], place: Place, params: Dict[str, Any], check: bool) -> str:
    """Return why mounted data are not there, in check mode; verify them where they are to be."""
    path = entry["mounted"]
    try:
        data.check_mounted(entry["name"], path)
    except DataError as error:
        if check:  # an earlier role would have mounted them
            return str(error)
        raise
    if not entry["sha256"] or check or not why_missing(entry, place, params["verify"]):
        return ""
    hashes = {p: data.sha256_of(os.path.join(path, p)) for p in regular(path)}
    found = data.tree_hash(hashes)
    if found != entry["sha256"]:
        raise DataError(
            "%s (%d files) has the hash %s, expected %s. Compare it with its source, or correct"
            " sha256 of %r in training_data."
            % (path, len(hashes), found, entry["sha256"], entry["name"])
        )
    marker = {"dest": place.dest, "identity": entry["identity"], "new": ""}
    data.write_marker(place.marker, dict(marker, files=data.notes_of(path, hashes)))
    return ""


def regular(folder: str, links: bool = True) -> Any:
    """Yield the regular files below a folder; with ``links``, also those that links lead to."""
    for path in data.walk(folder):
        found = (os.stat if links else os.lstat)(os.path.join(folder, path))
        if stat.S_ISREG(found.st_mode):
            yield path


def run_checked(params: Dict[str, Any], check: bool) -> Dict[str, Any]:
    """Report which data are there."""
    missing, paths = {}, {}
    for entry in params["entries"]:
        place = Place(params["root"], entry["name"], entry["dest"])
        paths[entry["name"]] = entry["mounted"] or place.target
        if entry["mounted"]:
            why = check_mounted(entry, place, params, check)
        else:
            why = why_missing(entry, place, params["verify"])
        if why:
            missing[entry["name"]] = why
    return {"changed": False, "missing": missing, "paths": paths}


def run_staged(params: Dict[str, Any], check: bool) -> Dict[str, Any]:
    """Prepare the folder for what is to be copied."""
    (entry,) = params["entries"]
    place, files = Place(params["root"], entry["name"], entry["dest"]), entry["files"]
    if not check:
        recover(place)
    marker = data.read_marker(place)
    data.check_target(place, files, marker)
    here = [] if entry["unpack"] else keep(place, files, data.noted(marker), params["verify"])
    came = sum(os.path.getsize(os.path.join(place.target, path)) for path in here)
    data.check_space(place, max(0, entry["size"] - came) * (2 if entry["unpack"] else 1))
    if not check:
        os.makedirs(place.tree, exist_ok=True)
        for path in data.walk(place.tree):
            if path not in files:
                os.unlink(os.path.join(place.tree, path))
        for path in here:
            if not os.path.lexists(os.path.join(place.tree, path)):
                data.link(os.path.join(place.target, path), os.path.join(place.tree, path))
    return {"changed": False, "staging": place.tree}


def keep(place: Place, files: Dict[str, Any], known: data.Notes, verify: bool) -> Any:
    """Return the files at the target that are as noted, or that the copy is to be compared with."""
    there = [path for path in files if os.path.isfile(os.path.join(place.target, path))]
    return [
        p for p in there if p not in known or not data.differs(place.target, p, known[p], verify)
    ]


def recover(place: Place) -> None:
    """Complete what a run broke off while it put data in place."""
    if os.path.isdir(place.old) and not os.path.lexists(place.target):
        os.rename(place.old, place.target)
    elif os.path.exists(place.next_marker):
        with open(place.next_marker, encoding="utf-8") as stream:
            new = json.load(stream)["new"]
        if not os.path.isdir(os.path.join(place.staging, new)):
            os.replace(place.next_marker, place.marker)


def verify_files(entry: Dict[str, Any], place: Place) -> Dict[str, str]:
    """Return the hashes of what was copied, compared with the known ones; a wrong file goes."""
    hashes = {}
    for path, wanted in entry["files"].items():
        full = os.path.join(place.tree, path)
        if not os.path.isfile(full):
            raise DataError("%s of %s was not copied: run again." % (path, place.name))
        found = hashes[path] = data.sha256_of(full)
        content = data.content_of(full) if wanted.get("content") else ""
        if found == wanted.get("sha256", found) or content == wanted.get("content"):
            continue
        os.unlink(full)
        known = entry["dataset"]
        raise DataError(
            "%s of %s has SHA-256 %s, expected %s%s%s. It was removed from the host: get it"
            " again, or correct sha256." % (
                path, place.name, found, wanted["sha256"],
                " (and holds %s, expected %s)" % (content, wanted["content"]) if content else "",
                ": it is not the published file of %s" % known if known else "",
            )
        )  # fmt: skip
    if entry["sha256"] and "folder" in entry and data.tree_hash(hashes) != entry["sha256"]:
        raise DataError(
            "The folder of %s has the hash %s, expected %s: get it again, or correct sha256 (the"
            " hash of a folder is described in the role's README)."
            % (place.name, data.tree_hash(hashes), entry["sha256"])
        )
    return hashes


def run_placed(params: Dict[str, Any], check: bool) -> Dict[str, Any]:
    """Verify what was copied, unpack it, and put it in place in one step."""
    (entry,) = params["entries"]
    place = Place(params["root"], entry["name"], entry["dest"])
    marker = data.read_marker(place)
    diff = {"before": "", "after": "%s: %s\n" % (place.target, entry["identity"])}
    if marker:
        diff["before"] = "%s: %s\n" % (place.target, why_missing(entry, place, params["verify"]))
    if check:
        return {"changed": True, "diff": diff}
    hashes, new = verify_files(entry, place), place.tree
    if entry["unpack"]:
        new = place.unpacked
        shutil.rmtree(new, ignore_errors=True)
        try:
            unpack(os.path.join(place.tree, next(iter(hashes))), entry["unpack"], new)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)  # it may have filled the disk
            raise
        hashes = {p: data.sha256_of(os.path.join(new, p)) for p in regular(new, links=False)}
    if os.path.isdir(place.target):
        wanted = {} if entry["unpack"] else entry["files"]
        for path in data.foreign(place, wanted, data.noted(marker)):
            if not os.path.lexists(os.path.join(new, path)):
                data.link(os.path.join(place.target, path), os.path.join(new, path))
    links = keras_links(entry, place)
    os.makedirs(os.path.dirname(place.target), exist_ok=True)
    shutil.rmtree(place.old, ignore_errors=True)
    noting = {"dest": place.dest, "identity": entry["identity"], "new": os.path.basename(new)}
    noting.update(files=data.notes_of(new, hashes), links=list(links))
    os.sync()
    data.write_marker(place.next_marker, noting)
    if os.path.isdir(place.target):
        os.rename(place.target, place.old)
    os.rename(new, place.target)
    os.replace(place.next_marker, place.marker)
    for name, target in links.items():
        make_link(name, target, place.name)
    shutil.rmtree(place.staging)
    return {"changed": True, "diff": diff}


def run_absent(params: Dict[str, Any], check: bool) -> Dict[str, Any]:
    """Remove what was placed, by the notes of it; files of others stay."""
    root, left = params["root"], []
    state = os.path.join(root, data.STATE)
    if check or not os.path.isdir(state):
        return {"changed": os.path.isdir(state), "left": []}
    for note in sorted(name for name in os.listdir(state) if name.endswith(".json")):
        with open(os.path.join(state, note), encoding="utf-8") as stream:
            marker = json.load(stream)
        if not marker["new"]:  # mounted
            continue
        target = os.path.join(root, marker["dest"])
        for link in marker.get("links", []):
            if os.path.islink(link) and os.readlink(link).startswith(target + "/"):
                os.unlink(link)
        for path in data.noted(marker):
            if os.path.lexists(os.path.join(target, path)):
                os.unlink(os.path.join(target, path))
        for current, _, _ in os.walk(target, topdown=False):
            if not os.listdir(current):
                os.rmdir(current)
        if os.path.isdir(target):
            left.append(target)
    shutil.rmtree(state)
    if not os.listdir(root):
        os.rmdir(root)
    return {"changed": True, "left": left}


RUN = {"checked": run_checked, "staged": run_staged, "placed": run_placed, "absent": run_absent}


def run(params: Dict[str, Any], check: bool) -> Dict[str, Any]:
    """Return the module's result."""
    root = os.path.abspath(os.path.expanduser(params["root"]))
    return RUN[params["state"]](dict(params, root=root), check)


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "entries": {"type": "list", "elements": "dict", "default": []},
            "state": {"type": "str", "choices": list(RUN), "default": "checked"},
            "verify": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    # Long lists of files are nobody's matter.
    shown = {key: value for key, value in module.params.items() if key != "entries"}
    try:
        result = run(module.params, module.check_mode)
        module.exit_json(invocation={"module_args": shown}, **result)
    except DataError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg="%s: free space or fix what the message names, and run again" % error)


if __name__ == "__main__":
    main()
