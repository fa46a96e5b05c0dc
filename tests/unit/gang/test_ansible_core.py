"""The private parts of ansible-core, in this process. A test with plays runs them under several
versions: tests/integration/local/test_ansible_core.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ansible import constants
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible.utils import vars as ansible_vars

from train.gang import REPOSITORY, ansible_core


def test_options_are_those_of_the_documentation() -> None:
    options = ansible_core.documented_options(REPOSITORY / "plugins/modules/gang_start.py")
    assert [*options] == ["hosts", "beside", "registered"]
    assert options["registered"]["required"] is True


def test_a_module_without_options_has_none(tmp_path: Path) -> None:
    module = tmp_path / "nothing.py"
    module.write_text('DOCUMENTATION = "module: nothing\\nshort_description: Do nothing"\n')
    assert ansible_core.documented_options(module) == {}


def test_results_are_those_of_the_documentation() -> None:
    modules = REPOSITORY / "plugins/modules"
    results = ansible_core.documented_results(modules / "gang_stage.py")
    assert results == {"hosts", "warnings"}
    assert ansible_core.documented_results(modules / "tensorboard_serve.py") == frozenset()


def test_the_place_of_a_value_is_its_line_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yml"
    file.write_text("a: 1\nb:\n  c: text\n")
    loaded: Any = DataLoader().load_from_file(str(file))
    place = ansible_core.place_of(loaded["b"]["c"])
    assert place is not None
    assert (place.path, place.line, place.column) == (str(file), 3, 6)
    assert ansible_core.place_of("typed here") is None


def test_variables_of_the_command_line_win() -> None:
    manager = SimpleNamespace(extra_vars={"train_job_seed": 1})
    hostvars = SimpleNamespace(_variable_manager=manager)
    assert ansible_core.is_extra_variable(hostvars, "train_job_seed")
    assert not ansible_core.is_extra_variable(hostvars, "train_job_port")


def test_the_levels_of_one_variable_are_kept_and_all_others_replaced() -> None:
    levels: list[dict[str, Any]] = [{"env": {"A": 1}, "x": {"a": 1}}, {"y": 2}]
    levels += [{"env": {"B": 2}, "x": {"b": 2}}, {"env": None}]
    found: Any = {}
    before = constants.DEFAULT_HASH_BEHAVIOUR, ansible_vars.merge_hash

    def loaded() -> Any:
        """Combine variables as a play does, with values at all levels."""
        variables: Any = {}
        for level in levels:
            variables = ansible_vars.combine_vars(variables, level)
        return variables

    manager = SimpleNamespace(extra_vars={}, get_vars=lambda **_: loaded())
    inventory = SimpleNamespace(get_host=lambda host: host)
    hostvars = SimpleNamespace(_variable_manager=manager, _inventory=inventory)
    action = SimpleNamespace(_task=SimpleNamespace(get_play=lambda: None))
    variables, found = ansible_core.levels_of(action, hostvars, "node-1", "env")
    assert found == [{"A": 1}, {"B": 2}, None]
    assert variables == {"env": None, "x": {"b": 2}, "y": 2}
    assert (constants.DEFAULT_HASH_BEHAVIOUR, ansible_vars.merge_hash) == before


def test_the_names_of_variables_are_those_that_ansible_does_not_set() -> None:
    variables = {"a": {"train_job_port": 1, "inventory_hostname": "a", "ansible_user": "me"}}
    names = ansible_core.names_of_variables(variables, "a")
    assert names == ["train_job_port", "ansible_user"]


def test_an_added_host_renders_its_templates_when_they_are_used() -> None:
    task = SimpleNamespace(args={})
    made: dict[str, Any] = {}

    def get(name: str, **parts: Any) -> Any:
        made.update(parts["task"].args, module=name)
        return SimpleNamespace(run=lambda: {"add_host": {}})

    parts = dict.fromkeys(("_connection", "_play_context", "_loader", "_templar"))
    loaders = SimpleNamespace(action_loader=SimpleNamespace(get=get))
    copied = SimpleNamespace(copy=lambda: task)
    action = SimpleNamespace(_task=copied, _shared_loader_obj=loaders, **parts)
    templates = {"x": "{{ y }}", "groupname": "{{ y }}"}
    assert ansible_core.add_host(action, "b", ["worker"], templates, {"z": "{{ y }}"}) == {
        "add_host": {}
    }
    assert (made.pop("module"), made.pop("name")) == ("ansible.builtin.add_host", "b")
    assert made.pop("groups") == ["worker"]
    assert [*made] == ["x", "z"]
    templar = Templar(loader=DataLoader(), variables={"y": 7})
    assert (templar.template(made["x"]), templar.template(made["z"])) == (7, "{{ y }}")


COUNTING = """
from ansible._internal._templating._jinja_bits import AnsibleEnvironment
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from train.gang import ansible_core

compiled, compile_any = [], AnsibleEnvironment.compile
def count(self, source, *args, **given):
    compiled.append(source)
    return compile_any(self, source, *args, **given)
AnsibleEnvironment.compile = count

KNOWN, OTHER = "{{ place | upper }}/jobs", "{{ place }}/other"
WITH_ESCAPES = r"{{ place | regex_replace('/(s)', '-\\1') }}"
ansible_core.compile_templates([KNOWN, WITH_ESCAPES])
before = list(compiled)
for place in ("/srv", "/scratch"):
    templar = Templar(loader=DataLoader(), variables={"place": place})
    for text in (KNOWN, OTHER, WITH_ESCAPES):
        print(templar.template(trust_as_template(text)))
assert sorted(before) == sorted([KNOWN, WITH_ESCAPES]), before
assert compiled[len(before):] == [OTHER, OTHER], compiled
"""


def test_templates_are_compiled_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNTING],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == [
        *("/SRV/jobs", "/srv/other", "-srv"),
        *("/SCRATCH/jobs", "/scratch/other", "-scratch"),
    ], done.stderr
    assert (done.returncode, done.stderr) == (0, "")
