"""JAX from its real lock on SSH hosts, in addition to TensorFlow, and packages on top of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.support import wheels
from tests.support.lab import REPOSITORY, Labs
from tests.support.testbed import Testbed

pytestmark = [pytest.mark.docker, pytest.mark.soak]

SCRIPT = """\
import json, os
import jax, keras, trainpack
keras.distribution.initialize()
print("process", jax.process_index(), "of", jax.process_count(), "backend", keras.backend.backend())
print("trainpack", trainpack.NAME)
try:
    import tensorflow
except ImportError:
    print("no TensorFlow")
with open(os.environ["TRAIN_PROGRESS_FILE"], "a") as file:
    print(json.dumps({"step": 1, "steps": 1, "loss": 1.0}), file=file)
"""


def test_a_job_with_jax_and_packages(jax_testbed: Testbed, ssh_lab: Labs, tmp_path: Path) -> None:
    frameworks = yaml.safe_load((REPOSITORY / "roles/tensorflow/vars/main.yml").read_text())
    for name, about in frameworks["__tensorflow_frameworks"].items():
        if name in ("tensorflow", "jax"):
            link = f"train/{about['environment']}"
            marker = jax_testbed.exec("host-1", "cat", f"{link}/tensorflow-venv.json").stdout
            assert json.loads(marker)["framework"] == name
    folder, index = tmp_path / "script", tmp_path / "index"
    folder.mkdir()
    index.mkdir()
    wheels.write(index, "trainpack-1.0-py3-none-any", code=f"NAME = {str(tmp_path)!r}\n")
    (folder / "main.py").write_text(SCRIPT)
    lines = ["--no-index", f"--find-links {index}", "jax[cuda12]", "keras", "trainpack"]
    (folder / "requirements.txt").write_text("\n".join(lines) + "\n")
    lab = ssh_lab(worker=2)
    lab.doubtful = True  # it trains nothing
    ended = lab.run("--script", str(folder), "--framework", "jax", "--requirements", "--job", "jax")
    assert ended.code == 0, ended.error
    for number, log in enumerate(sorted((lab.runs_dir / "jax/logs").glob("worker-?.log"))):
        text = log.read_text()
        assert f"process {number} of 2 backend jax" in text
        assert f"trainpack {tmp_path}" in text
        assert "no TensorFlow" in text
