"""The role ``train_job`` from somebody else's playbook, without a setting of this repository."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.set_up_role import run_plays


def test_it_runs_a_job_on_this_machine(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import json, os\nprint(json.loads(os.environ['TF_CONFIG'])['task'])\n")
    variables = {
        "train_job_groups": {"worker": ["localhost"], "chief": [], "ps": [], "evaluator": []},
        "train_job_script": str(script),
        "train_job_root": str(tmp_path / "train"),
        "train_job_runs_dir": str(tmp_path / "runs"),
        "train_job_lease_dir": str(tmp_path / "leases"),
        "train_job_python": sys.executable,
    }
    play = {"hosts": "localhost", "gather_facts": False, "roles": ["train_job"], "vars": variables}
    run_plays(tmp_path, "another-host,", [play]).checked()
    (result,) = (tmp_path / "runs").glob("*/result.json")
    assert json.loads(result.read_text())["state"] == "completed"
