"""Prints docs/variables.md, from the roles' argument specifications: ``make reference``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROLES = Path(__file__).resolve().parents[1] / "roles"
#: The roles in the order of setup.yml, then those of the control node.
ORDER = (
    *("train_job", "tensorflow", "training_host", "clock_sync", "nvidia_driver"),
    *("training_data", "ssh_keys", "firewall", "controller", "gcp_instances", "aws_instances"),
)
_MARKUP = re.compile(r"\b[CEOV]\(([^()]+)\)")
INTRODUCTION = """\
# Variables

This page lists all variables of all roles, by entry point. `make reference` generates it from
`roles/*/meta/argument_specs.yml`, which Ansible also uses to check the variables.
`ansible-doc -t role ROLE` shows the same descriptions. [Your hosts](hosts.md#variables) explains
where to set variables, and lists the most common ones. `setup_roles` and `teardown_roles` are
variables of playbooks: see [What setup does](hosts.md#what-setup-does).

A variable with the scope `rank` may differ between hosts, in `host_vars` and `group_vars`. One with
the scope `gang` must be the same for all hosts of a job. If it differs, the job is rejected before
it starts.
"""
#: Name of the list, in the role's vars/main.yml, of variables that may differ between ranks.
RANK_VARIABLES = "__train_job_rank_variables"


def text_of(description: str | list[str]) -> str:
    """Return a description as Markdown for a table cell."""
    text = description if isinstance(description, str) else " ".join(description)
    return _MARKUP.sub(r"`\1`", " ".join(text.split())).replace("|", "\\|")


def scopes() -> dict[str, str]:
    """Return the scope of each variable of a job: ``gang`` or ``rank``."""
    role = ROLES / "train_job"
    specs = yaml.safe_load((role / "meta/argument_specs.yml").read_text("utf-8"))
    for_rank = yaml.safe_load((role / "vars/main.yml").read_text("utf-8"))[RANK_VARIABLES]
    options = specs["argument_specs"]["main"]["options"]
    return {name: "rank" if name in for_rank else "gang" for name in options}


def rows(
    options: dict[str, Any], defaults: dict[str, Any], before: str = ""
) -> Iterator[tuple[str, ...]]:
    """Yield the name, type, default and meaning of each option and of its nested options.

    ``before`` is the prefix of the names.
    """
    for name, option in options.items():
        default = defaults.get(name, option.get("default"))
        shown = "" if default is None else "empty" if default == "" else f"`{code(default)}`"
        kind = option["type"] + (f" of {option['elements']}" if "elements" in option else "")
        choices = ", ".join(f"`{code(choice)}`" for choice in option.get("choices", ()))
        yield (
            f"`{before}{name}`",
            f"{kind}: {choices}" if choices else kind,
            "required" if option.get("required") else shown.replace("|", "\\|"),
            text_of(option["description"]),
        )
        inner = f"{before}{name}{'[]' if option['type'] == 'list' else ''}."
        yield from rows(option.get("options", {}), {}, inner)


def code(value: object) -> str:
    """Return a value as YAML."""
    return value if isinstance(value, str) else json.dumps(value)


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield INTRODUCTION
    yield "".join(f"- [{role}](#{role})\n" for role in ORDER)
    for role in ORDER:
        specs = yaml.safe_load((ROLES / role / "meta/argument_specs.yml").read_text("utf-8"))
        defaults = yaml.safe_load((ROLES / role / "defaults/main.yml").read_text("utf-8"))
        yield f"## {role}\n"
        yield f"[What the role does](../roles/{role}/README.md)\n"
        known: dict[str, Any] = {}
        for entry, spec in specs["argument_specs"].items():
            options = spec.get("options", {})
            new = {name: option for name, option in options.items() if known.get(name) != option}
            same = ", ".join(f"`{name}`" for name in options if name not in new)
            known = {**new, **known}
            takes = f" Variables: {same}{', and:' if new else '.'}" if same else ""
            yield f"**`{entry}`**: {spec['short_description']}.{takes}\n"
            if new and (role, entry) == ("train_job", "main"):
                known_scopes = scopes()
                yield "| Variable | Scope | Type | Default | Meaning |\n|---|---|---|---|---|"
                for name, *row in rows(new, defaults):
                    yield f"| {name} | {known_scopes[name.strip('`')]} | {' | '.join(row)} |"
                yield ""
            elif new:
                yield "| Variable | Type | Default | Meaning |\n|---|---|---|---|"
                yield from (f"| {' | '.join(row)} |" for row in rows(new, defaults))
                yield ""


if __name__ == "__main__":
    print("\n".join(page()).rstrip())
