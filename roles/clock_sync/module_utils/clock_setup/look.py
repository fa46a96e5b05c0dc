"""The comparison of a host with what is wanted, in one go."""

from __future__ import annotations

import os
from typing import Any, Dict

from ansible.module_utils.host_setup.capabilities import CAP_SYS_TIME, may_have

from .clock import judge, read_clock
from .files import digest, drop_in_text, main_text, own_text
from .host import DAEMON, FAMILIES, host_family, read
from .units import check_units, show_units

APPLIED = "/var/lib/chrony/clock_sync.applied"


def look(params: Dict[str, Any]) -> Dict[str, Any]:
    """Return the module's result.

    Raises:
        HostError: the host is none that the role can work on.
        OSError: a file cannot be read.
        WrongClockError: all is as wanted, but not the clock.
    """
    wanted_here = params["state"] == "present"
    family = host_family()
    places = FAMILIES[family]
    main = read(places["main"])
    # The package writes the main file last.
    installed = os.path.exists(DAEMON) and bool(main)
    differences = [] if installed or not wanted_here else ["chrony is not installed"]
    sets_clock = may_have(CAP_SYS_TIME, read("/proc/self/status"))

    own = own_text(params)
    own_sources = bool(params["servers"] or params["pools"])
    drop_in = drop_in_text(places["options"]) if wanted_here and not sets_clock else ""
    files = [
        {"path": places["folder"] + "/train.conf", "text": own},
        {"path": "/etc/systemd/system/%s.d/clock_sync.conf" % places["unit"], "text": drop_in},
    ]
    if main:
        text = main_text(main, own_sources, places["folder"] if own else None)
        files.append({"path": places["main"], "text": text})
    for wanted in files:
        if read(wanted["path"]) != wanted["text"]:
            differences.append("%s has another content" % wanted["path"])
    # A run that was cut off before chrony was started again with the files left no such note. Times
    # of files say nothing: the clock itself may have been set in between.
    applied = {"path": APPLIED, "text": digest(files[:2]) if wanted_here else ""}
    if installed and read(APPLIED) != applied["text"]:
        differences.append("chrony was not started with the role's files")

    units = check_units(show_units(places["unit"]), places["unit"])
    if wanted_here:
        differences += units["differences"] if installed else []
        differences += ["%s keeps time, too" % name for name in units["others"]]

    result: Dict[str, Any] = {
        "changed": False,
        "ready": not differences,
        "differences": differences,
        "family": family,
        "installed": installed,
        "unit": places["unit"],
        "others": units["others"],
        "files": files,
        "applied": applied,
        "sets_clock": sets_clock,
    }
    if wanted_here and not differences and params["max_skew"] > 0:
        result["clock"] = read_clock(params["timeout"])
        judge(result["clock"], params["max_skew"], sets_clock)
    return result
