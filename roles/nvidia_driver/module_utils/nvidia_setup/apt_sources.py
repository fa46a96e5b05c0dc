"""The sources of apt, and among them the distribution's own archive."""

from __future__ import annotations

import glob
import os
import re
from typing import Any, Dict, List

from .system import Host

#: How the names of the source files begin that the role writes.
OWN_SOURCES = "nvidia-driver-"


def apt_entries(host: Host) -> List[Dict[str, Any]]:
    """Return what apt's source files hold, in both of their forms, as far as it is enabled.

    The role's own files are left out: what they should hold depends on the others.
    """
    entries = []
    listed = glob.glob(host.path("etc/apt/sources.list.d/*.list"))
    for path in [host.path("etc/apt/sources.list"), *sorted(listed)]:
        for line in (host.read(os.path.relpath(path, host.root)) or "").splitlines():
            found = re.match(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)(.*)", line.split("#")[0])
            if found:
                options = dict(part.partition("=")[::2] for part in (found.group(1) or "").split())
                entries.append(
                    {
                        "uris": [found.group(2)],
                        "suites": [found.group(3)],
                        "components": found.group(4).split(),
                        "signed_by": options.get("signed-by", ""),
                    }
                )
    for path in sorted(glob.glob(host.path("etc/apt/sources.list.d/*.sources"))):
        if os.path.basename(path).startswith(OWN_SOURCES):
            continue
        text = host.read(os.path.relpath(path, host.root)) or ""
        text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        for stanza in re.split(r"\n[ \t]*\n", text):
            fields = {
                name.lower(): value.strip()
                for name, value in re.findall(
                    r"^([A-Za-z-]+):[ \t]*(.*(?:\n[ \t]+.*)*)", stanza, re.MULTILINE
                )
            }
            if "deb" in fields.get("types", "").split() and fields.get("enabled") != "no":
                entries.append(
                    {
                        "uris": fields.get("uris", "").split(),
                        "suites": fields.get("suites", "").split(),
                        "components": fields.get("components", "").split(),
                        "signed_by": fields.get("signed-by", ""),
                    }
                )
    return entries


def apt_sources(host: Host, codename: str) -> Dict[str, Any]:
    """Return the addresses that apt uses, and where the distribution's own archive is.

    Two entries for one archive must agree on ``Signed-By``, or apt refuses both: so it is told,
    too, and C(components) says what is enabled already.
    """
    entries = apt_entries(host)
    archive = None
    for entry in entries:
        if codename in entry["suites"] and "main" in entry["components"] and entry["uris"]:
            archive = dict(entry, uri=entry["uris"][0])
            break
    if archive:
        same = [entry for entry in entries if archive["uri"] in entry["uris"]]
        wanted = (codename, codename + "-updates")
        suites = {suite for entry in same for suite in entry["suites"] if suite in wanted}
        components = {
            name for entry in same if codename in entry["suites"] for name in entry["components"]
        }
        archive = {
            "uri": archive["uri"],
            "suites": sorted(suites),
            "components": sorted(components),
            "signed_by": archive["signed_by"],
        }
    return {"uris": sorted({uri for entry in entries for uri in entry["uris"]}), "archive": archive}
