"""What a module returns becomes no variable and no command of a play."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.jobs import PLAIN
from tests.support.lab import Lab

OSC = "\x1b]52;c;ZXZpbA==\x07"


def test_what_a_module_says_becomes_no_variable_and_no_command(
    local_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    python = tmp_path / "python3"
    # The host's interpreter is the host's own: this one adds to what every module says.
    facts = {"train_job_notify_command": f"touch {marker}", "train_job_notify_webhook": "x"}
    lie = json.dumps({"ansible_facts": facts, "msg": f"a{OSC}b", "warnings": [f"w{OSC}"]})
    python.write_text(
        f"#!{sys.executable}\n"
        "import json, subprocess, sys\n"
        "done = subprocess.run([sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE)\n"
        "try:\n"
        "    told = json.loads(done.stdout)\n"
        f"    told.update(json.loads({lie!r}))\n"
        "    print(json.dumps(told))\n"
        "except ValueError:\n"
        "    sys.stdout.buffer.write(done.stdout)\n"
        "sys.exit(done.returncode)\n"
    )
    python.chmod(0o755)
    lab = local_lab(worker=1)
    run = lab.run(
        "--job", "lied-to", "--script", str(PLAIN), ansible_python_interpreter=str(python)
    )
    assert run.code == 0, run.error
    assert not marker.exists()
    assert any("\x1b" not in e["text"] for e in run.events if e["event"] == "notice")
    done = lab.playbook(
        "status.yml", train_job_id="lied-to", ansible_python_interpreter=str(python)
    )
    assert "\x1b]52" not in done.stdout
