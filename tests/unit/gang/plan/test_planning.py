"""Files that the plan of an attempt writes, and plans that are refused before that."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.unit.gang.hostile import FACTS, FILE, archive_of
from tests.unit.gang.made_up_play import a_play
from train.gang import notify
from train.gang.errors import UserError
from train.gang.plan import planning, script_files

NAMES = ("node-0", "node-1")
ROLES = ("AUTHOR", "COMMITTER")  # of a commit
ENVIRONMENT = {
    "root": "/opt/tf",
    "framework": "jax",
    "variant": "cpu",
    "python_series": "3.11",
    "lock_sha256": "0",
    "package_environments": [],
}
CLUSTER = {"worker": ["node-0:12345", "node-1:12345"]}


def facts(name: str, **changed: Any) -> dict[str, Any]:
    about = {"machine": name, "address": name, "environment": None, "missing_modules": None}
    return {**FACTS, **about, "gpus": [], "gpus_busy": {}, **changed}


class Plans:
    """A job of two workers, whose script is in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs_dir = folder, folder / "runs"
        self.script = folder / "project/main.py"
        self.script.parent.mkdir()
        self.script.write_text("import tensorflow\n")
        self.checks: dict[str, Any] = {name: {"host": facts(name)} for name in NAMES}
        self.environment_names: list[str] = []
        self.framework = "tensorflow"

    def args(self, **changed: Any) -> Any:
        ranks = {
            name: {"arguments": ["--lr", str(n)], "environment_names": self.environment_names}
            for n, name in enumerate(NAMES)
        }
        groups = {"chief": [], "worker": NAMES, "ps": [], "evaluator": []}
        tf_config = {
            name: json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": n}})
            for n, name in enumerate(NAMES)
        }
        return {
            **{"grown": False, "automatic": False},
            "placement": {"groups": groups, "hosts": NAMES, "left_out": {}},
            "variables": {
                "framework": self.framework,
                **{"ranks": ranks, "environment_names": [], "environment_differs": []},
            },
            "rank_environments": {name: {"RANK": str(n)} for n, name in enumerate(NAMES)},
            **{"tf_config": tf_config, "packages": None, "checks": "checks"},
            **{"attempt": 1, "job": "night", "runs_dir": str(self.runs_dir)},
            **{"script": str(self.script), "module": "", "include": [], "exclude": []},
            **{"code_limit_mb": 1, "readable_by": "owner"},
            **{"checkpoint_copy": False, "checkpoint_dir": ""},
            "settings": {"seed": 7, "policy": {"max_restarts": 3}},
            **changed,
        }

    def plan(self, check_mode: bool = False, **changed: Any) -> Any:
        play = a_play(self.checks, check_mode=check_mode)
        return planning.plan_attempt(play, self.args(**changed))

    def manifest(self) -> Any:
        return json.loads((self.runs_dir / "night/manifest.json").read_text())


@pytest.fixture
def plans(tmp_path: Path) -> Plans:
    return Plans(tmp_path)


def test_a_first_attempt_is_written_down_before_it_is_staged(plans: Plans) -> None:
    planned = plans.plan()
    assert (planned["job"], planned["hosts"], planned["warnings"]) == ("night", [*NAMES], [])
    assert planned["ranks"]["node-1"]["task"] == "worker-1"
    manifest = plans.manifest()
    assert [attempt["staged"] for attempt in manifest["attempts"]] == [False]
    assert [attempt["staged"] for attempt in planned["manifest"]["attempts"]] == [True]
    assert (manifest["seed"], manifest["entry"]) == (7, "main.py")
    assert manifest["cluster"] == CLUSTER
    # The first rank's arguments are those of the job; only others are listed.
    assert manifest["arguments"] == ["--lr", "0"]
    assert manifest["rank_arguments"] == {"node-1": ["--lr", "1"]}
    with tarfile.open(planned["archive"]) as archive:
        assert archive.getnames() == ["code/main.py"]
    assert (plans.runs_dir / "night").stat().st_mode & 0o077 == 0


def test_check_mode_writes_nothing(plans: Plans) -> None:
    checked = plans.plan(check_mode=True)
    assert checked["changed"] is False
    assert checked["tf_config"]["node-1"]["task"] == {"type": "worker", "index": 1}
    assert not plans.runs_dir.exists()


def test_changes_outside_of_the_scripts_folder_do_not_count(plans: Plans) -> None:
    def git(*words: str) -> None:
        who = {f"GIT_{role}_{what}": "a@b" for role in ROLES for what in ("NAME", "EMAIL")}
        command = ["git", "-C", str(plans.folder), *words]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, **who})

    git("init")
    git("add", "project")
    git("commit", "-m", "first")
    (plans.folder / "notes.txt").write_text("not committed")
    plans.plan()
    assert plans.manifest()["git"]["clean"] is True
    plans.script.write_text("import tensorflow  # changed\n")
    plans.plan(job="day")
    assert json.loads((plans.runs_dir / "day/manifest.json").read_text())["git"]["clean"] is False


def test_an_id_that_a_job_has_is_refused(plans: Plans) -> None:
    plans.plan()
    before = plans.manifest()
    with pytest.raises(UserError, match=r"already contains job night, .* choose another id"):
        plans.plan()
    assert plans.manifest() == before


def test_a_user_who_starts_the_next_attempt_sets_the_rules_for_restarts(plans: Plans) -> None:
    plans.plan()
    rules: Any = {"settings": {"seed": 9, "policy": {"max_restarts": 8}}}
    plans.plan(attempt=2, automatic=True, **rules)
    assert plans.manifest()["policy"] == {"max_restarts": 3}
    plans.plan(attempt=3, **rules)
    manifest = plans.manifest()
    assert (manifest["policy"], manifest["seed"]) == ({"max_restarts": 8}, 7)
    assert [one["requested"] for one in manifest["attempts"]] == [True, False, True]


def test_a_later_attempt_runs_what_was_sent_first(plans: Plans) -> None:
    first = plans.plan(readable_by="all")
    assert (plans.runs_dir / "night").stat().st_mode & 0o777 == 0o755
    plans.script.write_text("raise SystemExit('another script')\n")
    placement: Any = {"groups": {"chief": [], "worker": ["node-1"], "ps": [], "evaluator": []}}
    placement |= {"hosts": ["node-1"], "left_out": {"node-0": "unreachable"}}
    planned = plans.plan(attempt=2, placement=placement)
    assert (planned["attempt"], planned["archive"]) == (2, first["archive"])
    manifest = plans.manifest()
    assert manifest["code_sha256"] == first["manifest"]["code_sha256"]
    assert [sorted(known["ranks"].values()) for known in manifest["attempts"]] == [
        ["node-0", "node-1"],
        ["node-1"],
    ]
    assert manifest["attempts"][1]["left_out"] == {"node-0": "unreachable"}
    # Node 1 keeps the folder of its results, though it is worker-0 now.
    results_dir = first["ranks"]["node-1"]["results_dir"]
    assert manifest["results_dirs"]["node-1"] == results_dir
    kept = json.loads((plans.runs_dir / "night/attempts/1/manifest.json").read_text())
    assert kept["attempt"] == 1


def test_code_that_was_changed_since_is_not_started_again(plans: Plans) -> None:
    archive_of(Path(plans.plan()["archive"]), [("code/main.py", FILE, b"another script")])
    with pytest.raises(UserError, match="differs from the code that the job was started with"):
        plans.plan(attempt=2)
    assert plans.manifest()["attempt"] == 1


def test_hosts_without_tensorflow_are_named_if_the_script_needs_it(plans: Plans) -> None:
    plans.checks["node-1"]["lacks_framework"] = True
    message = r"^TensorFlow is not installed on node-1: /opt/tf/bin/python cannot import it, but m"
    with pytest.raises(UserError, match=message) as refused:
        plans.plan()
    assert "--tags tensorflow" in str(refused.value)
    assert not plans.runs_dir.exists()
    plans.environment_names = ["PYTHONPATH"]  # it may be found there
    plans.plan()


def test_hosts_without_another_framework_are_named_if_the_script_needs_it(plans: Plans) -> None:
    plans.framework = "jax"
    plans.checks["node-1"]["lacks_framework"] = True
    plans.plan(check_mode=True)  # it imports TensorFlow only
    plans.script.write_text("import jax\n")
    with pytest.raises(UserError, match=r"^JAX is not installed on node-1: .* an interpreter with"):
        plans.plan(check_mode=True)
    for name in NAMES:
        plans.checks[name]["host"]["environment"] = ENVIRONMENT
    packages = {"name": "packages-1", "requirements": "", "lock": "", "sends_wheels": False}
    plans.plan(check_mode=True, packages=packages)  # they may contain it
    plans.framework = "none"
    plans.plan(check_mode=True)


def test_the_projects_own_program_needs_tensorflow(plans: Plans) -> None:
    plans.framework = "torch"
    with pytest.raises(UserError, match=r"train/worker\.py, .* train_job_framework is torch: pass"):
        plans.plan(script=str(script_files.WORKER))


def test_what_a_plan_notes_about_another_framework(plans: Plans) -> None:
    plans.framework = "torch"
    for name in NAMES:
        plans.checks[name]["host"]["versions"] = {"torch": "2.13.0"}
    planned = plans.plan()
    assert planned["rank_environments"]["node-1"] == {"RANK": "1"}
    assert planned["visible_gpus"] == dict.fromkeys(NAMES)
    assert plans.manifest()["versions"]["torch"] == ["2.13.0"]
    plans.checks["node-1"]["host"]["versions"] = {"torch": "2.12.0"}
    with pytest.raises(
        UserError, match=r"of PyTorch \(2\.12\.0 on node-1; 2\.13\.0 on node-0\): in"
    ):
        plans.plan(check_mode=True)


def test_hosts_on_which_jax_could_not_be_reached_are_refused(plans: Plans) -> None:
    plans.framework = "jax"
    plans.checks["node-0"]["host"]["gloo_address"] = "10.0.0.1"
    plans.checks["node-1"]["host"]["gloo_address"] = "127.0.1.1"
    with pytest.raises(UserError, match=r"^the ranks on node-1 .* resolves to 127\.0\.1\.1, on "):
        plans.plan(check_mode=True)
    plans.checks["node-1"]["host"]["machine"] = "node-0"  # loopback is enough on one machine
    plans.checks["node-1"]["host"]["port"] = 12346
    plans.plan(check_mode=True)


def test_a_script_without_tensorflow_needs_none(plans: Plans) -> None:
    plans.checks["node-1"]["lacks_framework"] = True
    plans.script.write_text("print('hello')\n")
    assert plans.plan()["changed"] is True


def test_gpus_that_are_not_used_are_a_warning(plans: Plans) -> None:
    gpu = {"index": 0, "uuid": "GPU-1", "instances": []}
    plans.checks["node-1"]["host"] = facts("node-1", gpus=[gpu], gpus_wanted="none")
    (warning,) = plans.plan()["warnings"]
    assert warning.startswith("the GPUs of node-1 are not used, because train_job_gpus is none")


def test_a_notification_names_what_ended_the_attempt_before(
    plans: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []

    def send(recipients: Any, event: str, **about: Any) -> list[str]:
        sent.append((event, about["message"], about["wait"]))
        return ["the notification could not be started"]

    monkeypatch.setattr(notify, "send", send)
    assert plans.plan()["warnings"] == ["the notification could not be started"]
    (plans.runs_dir / "night/result.json").write_text(json.dumps({"message": "it was killed"}))
    plans.plan(attempt=2)
    assert sent == [("start", "", False), ("restart", "it was killed", False)]
