"""Job planning and monitoring inside ansible-playbook: standard library and ``train.host`` only."""

from pathlib import Path

#: The folder that contains playbooks/, roles/ and train/.
REPOSITORY = Path(__file__).resolve().parents[2]
