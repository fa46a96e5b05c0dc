"""Compares the versions of the framework and its packages on hosts."""

from __future__ import annotations

from collections.abc import Mapping

from train.host.host_facts import HostFacts


def of_host(facts: HostFacts) -> dict[str, str]:
    """Return the versions of a host's framework and its packages, by package."""
    tensorflow = facts["tensorflow"]
    return {
        **({"tensorflow": tensorflow} if tensorflow is not None else {}),
        **facts.get("versions", {}),
    }


def of_all(hosts: Mapping[str, HostFacts]) -> dict[str, list[str]]:
    """Return all versions of the framework and its packages on the hosts, by package."""
    found: dict[str, set[str]] = {}
    for facts in hosts.values():
        for package, version in of_host(facts).items():
            found.setdefault(package, set()).add(version)
    return {package: sorted(found[package]) for package in sorted(found)}


def differing(facts: HostFacts, known: Mapping[str, object]) -> str:
    """Return how a host's framework differs from a job's, or an empty string.

    Args:
        facts: of the host.
        known: the ``versions`` in the job's manifest. Packages without a list there are ignored.
    """
    for package, version in of_host(facts).items():
        listed = known.get(package)
        if isinstance(listed, list) and listed and version not in listed:
            return f"it has {package} {version}, but the job trains with {' and '.join(listed)}"
    return ""
