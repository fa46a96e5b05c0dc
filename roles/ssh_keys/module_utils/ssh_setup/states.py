"""What the module does for each of its states."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from .addresses import find_addresses
from .files import read_text, sha256, write_text
from .keys import make_key, read_host_keys
from .lines import merge_authorized, with_include, without_include
from .place import FILES, HOSTS, KEY, NEXT, Place


def run_look(module: AnsibleModule, place: Place, user: str) -> Dict[str, Any]:
    """Tell what is there."""
    key, following = place.keys()
    return {
        "changed": False,
        "user": user,
        "key": key,
        "next": following,
        "host_keys": read_host_keys(module.params["host_keys"]),
        "addresses": find_addresses(module.params["resolve"]),
        "digests": place.digests(),
        "written": place.load()["written"],
    }


def run_keys(module: AnsibleModule, place: Place, user: str) -> Dict[str, Any]:
    """Make the keys that are missing."""
    key, following = place.keys()
    missing = KEY if not key else NEXT if module.params["rekey"] and not following else None
    if missing and not module.check_mode:
        place.make_folders(module)
        if place.has_spare():
            os.unlink(place.path(NEXT))
        make_key(place.path(missing), "%s:%s" % (place.name, user))
    return dict(run_look(module, place, user), changed=bool(missing))


def run_known(module: AnsibleModule, place: Place) -> Dict[str, Any]:
    """Tell what the files hold about some hosts."""
    wanted, loaded = set(module.params["wanted"]), place.load()
    hosts = [host for host in loaded["hosts"] if wanted & set(host.get("names", ()))]
    return {"changed": False, "written": loaded["written"], "hosts": hosts}


def run_written(module: AnsibleModule, place: Place) -> Dict[str, Any]:
    """Write what differs: first what lets others in and says who they are, then who is known."""
    content = module.params["content"]
    before = place.digests()
    after = {name: sha256(content[name]) for name in (*FILES, "authorized_keys", "hosts")}
    after.update(include="yes", modes="", spare="no")
    differences = sorted(name for name in after if before[name] != after[name])
    names = [
        "".join("%s\n" % " ".join(host["names"]) for host in hosts)
        for hosts in (place.load()["hosts"], json.loads(content["hosts"]))
    ]
    if differences and not module.check_mode:
        place.make_folders(module)
        for path, mode in place.wrong_modes():
            os.chmod(path, mode)
        for name in FILES:
            if name in differences:
                write_text(place.path(name), content[name])
        if "authorized_keys" in differences:
            text = read_text(place.authorized)
            lines = content["authorized_keys"]
            write_text(place.authorized, merge_authorized(text, lines, place.name))
        if "include" in differences:
            write_text(place.config, with_include(read_text(place.config), place.name))
        if "hosts" in differences:
            known = '{"written":%d,"hosts":%s}\n' % (content["written"], content["hosts"])
            write_text(place.path(HOSTS), known)
        if "spare" in differences:
            os.unlink(place.path(NEXT))
    return {
        "changed": bool(differences),
        "differences": differences,
        "diff": {"before": names[0], "after": names[1], "before_header": "hosts known"},
    }


def run_switched(module: AnsibleModule, place: Place, user: str) -> Dict[str, Any]:
    """Put the next key in the place of the current one."""
    changed = bool(place.keys()[1])
    if changed and not module.check_mode:
        new = place.path(".new-%d" % os.getpid())
        os.link(place.path(NEXT), new)
        os.rename(new, place.path(KEY))
    return dict(run_look(module, place, user), changed=changed)


def run_absent(module: AnsibleModule, place: Place) -> Dict[str, Any]:
    """Take away what is ours."""
    act = not module.check_mode
    removed = []
    for path, text, kept in [
        (place.authorized, read_text(place.authorized), merge_authorized),
        (place.config, read_text(place.config), lambda text, _, name: without_include(text, name)),
    ]:
        rest = kept(text, "", place.name)
        if rest == text:
            continue
        removed.append("the cluster's lines in %s" % path)
        if act and rest.strip():
            write_text(path, rest)
        elif act:
            os.unlink(path)
    found = sorted(os.listdir(place.folder)) if os.path.isdir(place.folder) else []
    left = [] if module.params["keys"] else [n for n in found if n in (KEY, NEXT)]
    for name in found:
        if name in left:
            continue
        path = place.path(name)
        removed.append(path)
        if act and os.path.isdir(path):
            shutil.rmtree(path)  # of a key whose making was cut off
        elif act:
            os.unlink(path)
    if act and found and not left:
        os.rmdir(place.folder)
    return {
        "changed": bool(removed),
        "removed": removed,
        "left": [place.path(name) for name in left],
    }
