"""The plan and the watch, inside ansible-playbook: the standard library and ``train.host`` only."""

from pathlib import Path

#: The folder of playbooks/, roles/ and train/.
REPOSITORY = Path(__file__).resolve().parents[2]
