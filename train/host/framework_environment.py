"""The environment variables of a rank's process that depend on its framework.

The variables by which ranks find each other are rendered on the control node, except TF_CONFIG,
which has its own file.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Mapping

from . import contacts, frameworks, gloo, rank_environment, records


def add(environment: Dict[str, str], spec: records.RankSpec, tf_config: Mapping[str, Any]) -> None:
    """Add the variables of a rank's framework to its environment."""
    adders = {
        frameworks.TENSORFLOW: _add_tensorflow,
        frameworks.JAX: _add_jax,
        frameworks.TORCH: _add_torch,
    }
    if spec["framework"] in adders:
        adders[spec["framework"]](environment, spec, tf_config)


def _share_of_cores(spec: records.RankSpec) -> int:
    """Return the number of the machine's cores for each of its ranks."""
    return max(1, (os.cpu_count() or 1) // spec["ranks_on_machine"])


def _add_tensorflow(
    environment: Dict[str, str], spec: records.RankSpec, tf_config: Mapping[str, Any]
) -> None:
    environment["TF_CONFIG"] = json.dumps(tf_config)
    environment[rank_environment.ENV_GRPC] = rank_environment.GRPC_OPTIONS
    environment["TF_USE_LEGACY_KERAS"] = "1" if spec["keras"] == 2 else "0"
    sharing, cores = spec["ranks_on_machine"], len(os.sched_getaffinity(0))
    threads = _share_of_cores(spec)
    # With a single thread, a chief and its parameter servers hang.
    least = 4 if tf_config.get("cluster", {}).get("ps") else 1
    if sharing > 1:
        # Ranks of one machine that each use all cores slow each other down.
        environment.setdefault("TF_NUM_INTRAOP_THREADS", str(threads))
    if sharing > 1 or cores < least:
        environment.setdefault("TF_NUM_INTEROP_THREADS", str(max(least, threads)))
    if spec["gpus"] is not None:
        environment.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


def _add_jax(
    environment: Dict[str, str], spec: records.RankSpec, tf_config: Mapping[str, Any]
) -> None:
    if spec["gpus"]:
        # All of the visible ones: within a Slurm job, JAX would take only one.
        numbers = map(str, range(len(spec["gpus"])))
        environment["JAX_LOCAL_DEVICE_IDS"] = ",".join(numbers)


def _add_torch(
    environment: Dict[str, str], spec: records.RankSpec, tf_config: Mapping[str, Any]
) -> None:
    if spec["ranks_on_machine"] > 1:
        environment.setdefault("OMP_NUM_THREADS", str(_share_of_cores(spec)))
    interface = gloo.interface_toward(contacts.peers_of(tf_config))
    if interface:
        environment.setdefault("GLOO_SOCKET_IFNAME", interface)
