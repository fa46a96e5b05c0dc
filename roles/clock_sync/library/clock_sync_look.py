#!/usr/bin/python
"""Ansible module: tells in one call whether a host keeps time as wanted, and how wrong it is.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: clock_sync_look
short_description: Tell in one call whether a host keeps time with chrony as wanted
description:
  - Compares chrony's configuration, its unit and what else keeps time with what is wanted, returns
    the texts that are wanted, and changes nothing.
  - Where all is as wanted, it waits until chrony has chosen a source, and fails where it chooses
    none or the clock is too far off.
options:
  state:
    description:
      - V(absent) compares with a host that has nothing of the role, as far as files go, and returns
        the texts for that.
    type: str
    choices: [present, absent]
    default: present
  servers:
    description: NTP servers, names or addresses.
    type: list
    elements: str
    default: []
  pools:
    description: NTP pools, names.
    type: list
    elements: str
    default: []
  serve:
    description:
      - Names or addresses that may ask this host for the time, which then gives its own where it
        reaches no source. Names are looked up on the host. Empty where it serves nobody.
    type: list
    elements: str
    default: []
  max_skew:
    description: Seconds that the clock may be off. 0 asks nothing of the clock.
    type: float
    default: 0
  timeout:
    description: Seconds to wait for a source.
    type: float
    default: 0
attributes:
  check_mode:
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Look at the clock
  clock_sync_look:
    servers: [192.0.2.11]
    max_skew: 0.5
    timeout: 60
  register: look
"""

RETURN = r"""
ready:
  description: Whether nothing differs.
  type: bool
  returned: success
differences:
  description: What differs, each in a few words.
  type: list
  elements: str
  returned: success
  sample: ["chrony is not installed"]
family:
  description: V(debian) or V(redhat).
  type: str
  returned: success
installed:
  description: Whether chrony is installed.
  type: bool
  returned: success
unit:
  description: The name of chrony's unit.
  type: str
  returned: success
others:
  description: Units of other time daemons that are active or enabled.
  type: list
  elements: str
  returned: success
files:
  description: Files as they are wanted, each with C(path) and C(text). An empty text is no file.
  type: list
  elements: dict
  returned: success
applied:
  description: Path and text of the note that chrony runs with these files.
  type: dict
  returned: success
sets_clock:
  description: Whether this host may set its clock. A container mostly may not.
  type: bool
  returned: success
clock:
  description:
    - C(source) is what chrony follows, C(stratum) this host's distance from a reference clock,
      C(offset) the seconds by which the clock is ahead of the source (negative, behind).
  type: dict
  returned: where all is as wanted and the clock is asked for
  sample: {source: 192.0.2.11, stratum: 11, offset: -0.00002}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.clock_setup.clock import WrongClockError
from ansible.module_utils.clock_setup.host import HostError
from ansible.module_utils.clock_setup.look import look


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"choices": ["present", "absent"], "default": "present"},
            "servers": {"type": "list", "elements": "str", "default": []},
            "pools": {"type": "list", "elements": "str", "default": []},
            "serve": {"type": "list", "elements": "str", "default": []},
            "max_skew": {"type": "float", "default": 0.0},
            "timeout": {"type": "float", "default": 0.0},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**look(module.params))
    except (HostError, WrongClockError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg="%s: run the role with become" % error)


if __name__ == "__main__":
    main()
