"""The environment variables of a rank that depend on its framework."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from train.host import framework_environment, gloo

CORES = os.cpu_count() or 1
CLUSTER = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}


def added(framework: str, **changed: Any) -> dict[str, str]:
    spec: Any = {"framework": framework, "ranks_on_machine": 1, "gpus": None, "keras": 2, **changed}
    environment: dict[str, str] = {}
    framework_environment.add(environment, spec, CLUSTER)
    return environment


def test_only_tensorflow_gets_tf_config() -> None:
    found = added("tensorflow", keras=3, gpus=["0"])
    assert json.loads(found.pop("TF_CONFIG")) == CLUSTER
    assert "enable_http_proxy" in found.pop("TF_GRPC_DEFAULT_OPTIONS")
    assert found == {"TF_USE_LEGACY_KERAS": "0", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    assert added("none", gpus=["0"], ranks_on_machine=2) == {}


def test_ranks_of_a_machine_share_its_cores() -> None:
    threads = str(max(1, CORES // 2))
    found = added("tensorflow", ranks_on_machine=2)
    assert found["TF_NUM_INTRAOP_THREADS"] == found["TF_NUM_INTEROP_THREADS"] == threads
    assert added("torch", ranks_on_machine=2)["OMP_NUM_THREADS"] == threads


def test_jax_uses_all_visible_gpus() -> None:
    assert added("jax", gpus=["2", "3"]) == {"JAX_LOCAL_DEVICE_IDS": "0,1"}
    assert added("jax", gpus=[]) == added("jax") == {}


def test_pytorch_gets_an_interface_only_if_gloo_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo, "interface_toward", lambda hosts: "eth1" if hosts == {"b"} else "")
    assert added("torch") == {"GLOO_SOCKET_IFNAME": "eth1"}
    monkeypatch.setattr(gloo, "interface_toward", lambda _: "")
    assert added("torch") == {}
