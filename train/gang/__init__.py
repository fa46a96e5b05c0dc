"""Plans and monitors jobs inside ansible-playbook. Does not import ``train.cli``."""

from pathlib import Path

#: The folder of the package ``train``.
PACKAGE = Path(__file__).resolve().parents[1]
#: The collection's name.
COLLECTION = "tensorflow_ansible.cluster"
_FOLDER = PACKAGE.parent
#: Whether this package was installed from a wheel. It is then next to
#: ``ansible_collections``, where Ansible finds the collection without a setting.
IS_PACKAGED = not (_FOLDER / "playbooks/train.yml").is_file()
#: The folder that contains playbooks/ and roles/: a clone of the repository, or the collection.
REPOSITORY = (
    _FOLDER.joinpath("ansible_collections", *COLLECTION.split(".")) if IS_PACKAGED else _FOLDER
)
