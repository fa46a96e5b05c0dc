"""What nft lists: this role's table, and those of others."""

from __future__ import annotations

import hashlib
import json
from typing import Any, List

from .programs import FirewallError, run

TABLE = "train"


def list_table(nft: str) -> str:
    """Return the table as JSON, empty where it is not loaded.

    Raises:
        FirewallError: nft cannot tell.
    """
    done = run(nft, "-j", "list", "table", "inet", TABLE, check=False)
    if done.returncode == 0:
        return done.stdout
    if "No such file or directory" in done.stderr:
        return ""
    raise FirewallError(
        "nft cannot list its tables: %s. The host's kernel must have nf_tables, and a container the"
        " capability NET_ADMIN; or leave the role firewall out." % done.stderr.strip()
    )


def listed_hash(listing: str) -> str:
    """Return a hash of ``nft -j list table``, the same as long as nobody changes the table.

    Versions of nft list the same rules in different forms: the hash is compared only with one that
    was taken on the same host.
    """
    entries = [strip(entry) for entry in json.loads(listing)["nftables"]]
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def strip(value: Any) -> Any:
    """Return what nft lists as JSON, without what differs from one loading to the next."""
    if isinstance(value, dict):
        return {
            key: None if key == "counter" else strip(item)
            for key, item in value.items()
            if key not in ("handle", "metainfo")
        }
    return [strip(item) for item in value] if isinstance(value, list) else value


def warnings_of(nft: str) -> List[str]:
    """Return what to tell of other tables: what they drop, an accept of ours does not save."""
    done = run(nft, "-j", "list", "chains", check=False)
    tables = set()
    for entry in json.loads(done.stdout)["nftables"] if done.returncode == 0 else []:
        chain = entry.get("chain", {})
        refuses = chain.get("policy") == "drop" or chain.get("table") == "firewalld"
        if chain.get("hook") == "input" and refuses and chain["table"] != TABLE:
            tables.add("%s %s" % (chain["family"], chain["table"]))
    return [
        "the table %s of this host (firewalld, ufw or rules of your own) refuses what it does not"
        " allow, members of the cluster included: allow them the ports there, too (firewall-cmd"
        " --add-rich-rule, ufw allow from)" % name
        for name in sorted(tables)
    ]
