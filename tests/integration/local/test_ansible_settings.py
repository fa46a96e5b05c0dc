"""No job and no outcome depends on Ansible settings in the user's environment."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.jobs import PLAIN
from tests.support.lab import REPOSITORY, Lab, Labs, environment, playbook_command, run
from train.cli.playbooks import foreign_settings, last_lines_of, usable_locale

#: Settings that have changed or broken a job, or could do so.
FOREIGN = {
    "ANSIBLE_STDOUT_CALLBACK": "nowhere.to.be.found",
    "ANSIBLE_CALLBACKS_ENABLED": "ansible.posix.profile_tasks,timer",
    "ANSIBLE_CALLBACK_PLUGINS": "/nonexistent",
    "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml",
    "ANSIBLE_NO_LOG": "True",
    "ANSIBLE_NO_TARGET_SYSLOG": "True",
    "ANSIBLE_STRATEGY": "free",
    "ANSIBLE_STRATEGY_PLUGINS": "/nonexistent",
    "ANSIBLE_TASK_TIMEOUT": "1",
    "ANSIBLE_ROLES_PATH": "/nonexistent",
    "ANSIBLE_LIBRARY": "/nonexistent",
    "ANSIBLE_ACTION_PLUGINS": "/nonexistent",
    "ANSIBLE_MODULE_UTILS": "/nonexistent",
    "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "False",
    "ANSIBLE_DISPLAY_OK_HOSTS": "False",
    "ANSIBLE_DISPLAY_FAILED_STDERR": "True",
    "ANSIBLE_DISPLAY_ARGS_TO_STDOUT": "True",
    "ANSIBLE_SHOW_CUSTOM_STATS": "True",
    "ANSIBLE_ANY_ERRORS_FATAL": "True",
    "ANSIBLE_ERROR_ON_MISSING_HANDLER": "False",
    "ANSIBLE_ERROR_ON_UNDEFINED_VARS": "False",
    "ANSIBLE_INJECT_FACT_VARS": "False",
    "ANSIBLE_GATHERING": "implicit",
    "ANSIBLE_JINJA2_NATIVE": "True",
    "ANSIBLE_HASH_BEHAVIOUR": "merge",
    "ANSIBLE_PRECEDENCE": "all_inventory",
    "ANSIBLE_DUPLICATE_YAML_DICT_KEY": "error",
    "ANSIBLE_FORCE_COLOR": "True",
    "ANSIBLE_NOCOLOR": "True",
    "ANSIBLE_LOG_PATH": "/nonexistent/ansible.log",
    "ANSIBLE_LOG_VERBOSITY": "4",
    "ANSIBLE_VERBOSITY": "4",
    "ANSIBLE_DEBUG": "True",
    "ANSIBLE_CACHE_PLUGIN": "jsonfile",
    "ANSIBLE_CACHE_PLUGIN_CONNECTION": "/nonexistent",
    "ANSIBLE_KEEP_REMOTE_FILES": "True",
    "ANSIBLE_INVENTORY_UNPARSED_FAILED": "True",
    "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "True",
    "ANSIBLE_HOST_PATTERN_MISMATCH": "error",
    "ANSIBLE_INVENTORY": "/nonexistent",
    "ANSIBLE_RUN_TAGS": "nothing",
    "ANSIBLE_SKIP_TAGS": "always",
    "ANSIBLE_RETRY_FILES_ENABLED": "True",
    "ANSIBLE_PLAYBOOK_DIR": "/nonexistent",
    "ANSIBLE_PLAYBOOK_VARS_ROOT": "bottom",
    "ANSIBLE_ASK_PASS": "True",
    "ANSIBLE_ASK_VAULT_PASS": "True",
    "ANSIBLE_BECOME_ASK_PASS": "True",
    "ANSIBLE_LOCAL_TEMP": "/nonexistent/tmp",
    "ANSIBLE_CONFIG": "/nonexistent/ansible.cfg",
    "ANSIBLE_HOST_KEY_CHECKING": "False",
    "ORIGINAL_STDOUT_CALLBACK": "oneline",
}
#: The user's choices: how hosts are reached, and the sources of inventories and passwords.
KEPT = {
    "ANSIBLE_FORKS": "1",
    "ANSIBLE_PIPELINING": "False",
    "ANSIBLE_TIMEOUT": "3",
    "ANSIBLE_TRANSPORT": "ssh",
    "ANSIBLE_REMOTE_USER": "nobody",
    "ANSIBLE_REMOTE_PORT": "2222",
    "ANSIBLE_PRIVATE_KEY_FILE": "/nonexistent",
    "ANSIBLE_SSH_ARGS": "-C",
    "ANSIBLE_SSH_RETRIES": "2",
    "ANSIBLE_SSH_PIPELINING": "False",
    "ANSIBLE_SSH_COMMON_ARGS": "-v",
    "ANSIBLE_BECOME_USER": "root",
    "ANSIBLE_BECOME_METHOD": "sudo",
    "ANSIBLE_SUDO_FLAGS": "-H -S -n",
    "ANSIBLE_PYTHON_INTERPRETER": "/usr/bin/python3",
    "ANSIBLE_COLLECTIONS_PATH": "/nonexistent",
    "ANSIBLE_INVENTORY_ENABLED": "host_list,yaml,ini,auto",
    "ANSIBLE_VAULT_IDENTITY": "work",
    "ANSIBLE_FILTER_PLUGINS": "/nonexistent",
}
#: The settings in FOREIGN that can still do harm if a user runs ansible-playbook directly.
DIRECT = (
    *("ANSIBLE_NO_LOG", "ANSIBLE_STRATEGY", "ANSIBLE_ANY_ERRORS_FATAL"),
    *("ANSIBLE_HASH_BEHAVIOUR", "ANSIBLE_JINJA2_NATIVE", "ANSIBLE_INJECT_FACT_VARS"),
    *("ANSIBLE_DISPLAY_SKIPPED_HOSTS", "ANSIBLE_KEEP_REMOTE_FILES", "ANSIBLE_GATHERING"),
)


def train(lab: Lab, more: Mapping[str, str], *options: str, **variables: Any) -> dict[str, Any]:
    """Run a plain job with more environment variables, and return its result."""
    words = lab.words("run", "--json", "--script", str(PLAIN), *options, **variables)
    done = subprocess.run(
        [sys.executable, "-m", "train", *words],
        cwd=REPOSITORY,
        env={**environment(), **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr
    found: dict[str, Any] = lines[-1]
    assert "Traceback" not in done.stderr
    return found


def test_what_is_kept_of_an_environment() -> None:
    assert set(foreign_settings({**FOREIGN, **KEPT, "PATH": "", "ANSIBLE_A-B": ""})) == {
        name
        for name in FOREIGN
        if name
        not in (
            *("ANSIBLE_CALLBACK_PLUGINS", "ANSIBLE_CONFIG", "ANSIBLE_HOST_KEY_CHECKING"),
            *("ANSIBLE_LOCAL_TEMP", "ANSIBLE_RETRY_FILES_ENABLED", "ANSIBLE_STDOUT_CALLBACK"),
            "ORIGINAL_STDOUT_CALLBACK",
        )
    }


#: Locales that Ansible does not accept, or whose encoding is not UTF-8.
LOCALES = {
    "C": {"LC_ALL": "C", "LANG": "C"},
    "POSIX": {"LC_ALL": "POSIX"},
    "not-installed": {"LC_ALL": "xx_YY.UTF-8", "LANG": "xx_YY.UTF-8"},
    "latin-1": {"LC_ALL": "", "LC_CTYPE": "xx_YY", "LANG": "en_US.ISO-8859-1"},
}


@pytest.mark.parametrize("environ", LOCALES.values(), ids=LOCALES)
def test_a_locale_that_ansible_accepts_takes_the_place_of_others(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert usable_locale() == {"LC_ALL": "C.UTF-8"}
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert usable_locale() == {}


@pytest.mark.parametrize(
    "settings",
    [
        FOREIGN,
        pytest.param(KEPT, marks=pytest.mark.soak),
        {"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", **LOCALES["not-installed"]},
        pytest.param({"ANSIBLE_STDOUT_CALLBACK": "yaml", **LOCALES["C"]}, marks=pytest.mark.soak),
    ],
    ids=["foreign", "kept", "json", "yaml"],
)
def test_no_setting_changes_a_job(local_lab: Labs, settings: dict[str, str]) -> None:
    lab = local_lab()
    variables = {"train_job_environment": {"FROM_E": "ü"}}
    result = train(lab, settings, "--job", "usual", **variables)
    assert result["state"] == "completed", result
    assert [rank["phase"] for rank in result["ranks"]] == ["completed", "completed"]
    log = (lab.runs_dir / "usual/ansible.log").read_text()
    assert "TASK [tensorflow_ansible.cluster.train_job : Watch | Follow all ranks]" in log
    # Messages of tasks are shown as well.
    refused = train(lab, settings, "--job", "wrong", train_job_keras=4)
    assert refused["state"] == "refused"
    assert "train_job_keras of worker0, worker1 is a whole number, 4" in refused["message"]


def test_settings_of_ansible_playbook_itself(local_lab: Labs) -> None:
    lab = local_lab()
    more = {name: FOREIGN[name] for name in DIRECT}
    given = lab.given({"train_job_script": str(PLAIN), "train_job_id": "direct"})
    command = playbook_command("train.yml", lab.inventory, given)
    done = run(*command, env={**environment(), **more}, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    assert lab.saved("direct")["state"] == "completed"
    assert "job direct completed; its results are in" in done.stdout
    wrong = playbook_command("train.yml", lab.inventory, {**given, "train_job_port": "abc"})
    refused = run(*wrong, env={**environment(), **more}, stderr=subprocess.STDOUT)
    assert "train_job_port of worker0, worker1 is a string" in refused.stdout


def test_an_error_of_ansible_playbook_is_shown_from_its_beginning(local_lab: Labs) -> None:
    lab = local_lab()
    vault = "$ANSIBLE_VAULT;1.1;AES256\n3361\n"
    (lab.inventory / "group_vars/all/vault.yml").write_text(vault)
    result = train(lab, {})
    assert result["state"] == "refused"
    assert "ansible-playbook failed:\n[ERROR]: Attempting to decrypt" in result["message"]


def test_the_lines_of_an_error() -> None:
    lines = [
        "[ERROR]: it broke",
        "Origin: hosts.yml:3:1",
        "",
        "1 a:",
        "2   b: {",
        "     ^ column 4",
    ]
    output = "\n".join(["PLAY [Train] ***", "ok: [a]", *lines])
    assert last_lines_of(output) == [line for line in lines if line]
    assert last_lines_of("ERROR! old\nmore") == ["ERROR! old", "more"]
    assert last_lines_of("\x1b[0;31m[ERROR]: red\x1b[0m\nmore") == ["[ERROR]: red", "more"]
    assert last_lines_of("a\nb\n\nc\nd\n") == ["b", "c", "d"]
    assert last_lines_of("") == []
