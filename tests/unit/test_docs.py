"""The documentation against the code: variables, defaults, links, commands, examples."""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.manager import VariableManager

from tests.support.lab import REPOSITORY, clean_environment, run
from tests.support.training_ranks import WORKER
from train.cli import ansible_program
from train.cli.ansible_options import parse_variables
from train.cli.main import build_parser
from train.gang.packages.requested import INDEXES
from train.host import rank_environment, records

README = REPOSITORY / "README.md"


def doc(name: str) -> Path:
    return REPOSITORY / f"docs/{name}.md"


METRICS, TRAINING, YOUR_SCRIPT = map(doc, ("metrics", "training", "your-script"))
#: The pages for users.
GUIDES = [README, TRAINING, YOUR_SCRIPT]
GUIDES += map(doc, ("hosts", "cloud", "slurm", "jobs", "doctor", "ansible", "gpus", "variables"))
GUIDES.append(doc("supervision"))
ROLES = sorted(path.parent for path in REPOSITORY.glob("roles/*/meta"))
ROLE_PAGES = [role / "README.md" for role in ROLES]
PAGES = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *ROLE_PAGES]
PAGES += sorted(REPOSITORY.glob("examples/**/README.md"))
EXAMPLES = sorted(path.parent for path in REPOSITORY.glob("inventory/*/hosts.yml"))
VARIABLE = re.compile(rf"(?<![./\w-])(?:{'|'.join(role.name for role in ROLES)})_[a-z][a-z0-9_]*\b")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def specs_of(role: Path) -> Any:
    return yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]


#: The commands for jobs on hosts.
ON_JOBS = {"run", "attach", "status", "list", "logs", "tensorboard", "stop", "clean"}
#: Names that look like variables of a role, but are modules or this collection.
MODULES = {"tensorflow_ansible"} | {
    path.stem
    for folder in ("modules", "filter")
    for path in REPOSITORY.glob(f"plugins/{folder}/*.py")
}
REGISTERED = {
    name
    for path in REPOSITORY.glob("roles/*/tasks/*.yml")
    for name in re.findall(
        r"^ +(?:register: |\S+set_fact:\n +)(\w+)", path.read_text(), re.MULTILINE
    )
}
#: Variables of the playbooks.
SETTINGS = {"setup_roles", "teardown_roles"}
ENTRIES = [entry for role in ROLES for entry in specs_of(role).values()]
KNOWN = {name for entry in ENTRIES for name in entry.get("options", {})}


def blocks(page: Path, language: str) -> list[str]:
    return [text for marked, text in FENCE.findall(page.read_text()) if marked == language]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command in the shell blocks of a page."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield words


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*GUIDES, *ROLE_PAGES], ids=name_of)
def test_every_variable_that_is_mentioned_exists(page: Path) -> None:
    text = page.read_text()
    for output in blocks(page, ""):  # it may show a misspelled name
        text = text.replace(output, "")
    mentioned = set(VARIABLE.findall(text)) - MODULES - REGISTERED
    assert mentioned
    assert mentioned <= KNOWN, sorted(mentioned - KNOWN)


def defaults_of(role: Path) -> Any:
    return yaml.safe_load((role / "defaults/main.yml").read_text())


def test_the_page_of_variables_is_what_the_roles_specify() -> None:
    done = run(sys.executable, str(REPOSITORY / "docs/reference.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == doc("variables").read_text(), "make reference"
    assert {role.name for role in ROLES} <= anchors(doc("variables"))
    shown = set(re.findall(r"^\| `(\w+)` \|", done.stdout, re.MULTILINE))
    assert shown == KNOWN


def test_the_schemas_are_those_of_the_records(tmp_path: Path) -> None:
    done = run(sys.executable, "-m", "docs.schemas", str(tmp_path))
    assert done.returncode == 0, done.stderr
    made, published = (
        {path.name: path.read_text() for path in folder.iterdir()}
        for folder in (tmp_path, REPOSITORY / "docs/schemas")
    )
    assert made == published, "make reference"


@pytest.mark.parametrize("role", ROLES, ids=name_of)
def test_a_default_is_the_one_that_is_specified(role: Path) -> None:
    defaults, found = defaults_of(role), {}
    for entry in specs_of(role).values():
        for name, option in entry.get("options", {}).items():
            if name in defaults and "default" in option:
                found[name] = option["default"]
    assert {name for name in defaults if "{{" not in str(defaults[name])} <= set(found)
    assert {name: defaults[name] for name in found} == found


def test_every_entry_point_of_the_role_train_job_is_described() -> None:
    role = REPOSITORY / "roles/train_job"
    rows = re.findall(r"^\| `(\w+)` \|", (role / "README.md").read_text(), re.M)
    assert set(specs_of(role)) <= set(rows)


def tasks_of(role: Path, name: str) -> str:
    """Return a task file of a role, with the files that it always imports or includes."""
    text = (role / f"tasks/{name}.yml").read_text()
    found = re.findall(r"(?:include|import)_tasks: (?:\"{{ role_path }}/tasks/)?(\w+)\.yml", text)
    return "\n".join([text, *(tasks_of(role, other) for other in found)])


@pytest.mark.parametrize(
    "entry", sorted(set(specs_of(REPOSITORY / "roles/train_job")) - {"main", "fault"})
)
def test_an_entry_point_lists_the_variables_of_its_tasks(entry: str) -> None:
    role = REPOSITORY / "roles/train_job"
    read = set(re.findall(r"(?<![\w.])train_job_\w+", tasks_of(role, entry)))
    listed = set(specs_of(role)[entry].get("options", {}))
    assert read - listed == set()


def test_the_defaults_of_the_most_used_variables() -> None:
    defaults = {name: value for role in ROLES for name, value in defaults_of(role).items()}
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \| ", doc("hosts").read_text(), re.MULTILINE))
    shared = set(rows) & set(defaults)
    assert len(shared) >= 5
    for name in shared:
        if "{{" not in str(defaults[name]):  # described in prose
            shown = "" if rows[name] == "empty" else yaml.safe_load(rows[name].strip("`"))
            assert shown == defaults[name], name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    assert links
    for link in links:
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (README, ON_JOBS | {"dashboard"}),
        (doc("hosts"), {"run"}),
        (doc("cloud"), {"run"}),
        (doc("jobs"), ON_JOBS | {"report", "compare"}),
        (doc("ansible"), {"run"}),
        (doc("install"), {"run", "status", "list", "playbook"}),
        (METRICS, {"run", "attach"}),
        (doc("dashboard"), {"dashboard"}),
        (doc("supervision"), {"drill"}),
        (TRAINING, {"run"}),
        (YOUR_SCRIPT, {"run", "tf-config"}),
        (doc("slurm"), {"run", "list", "logs"}),
    ],
    ids=lambda value: name_of(value) if isinstance(value, Path) else None,
)
def test_the_parser_takes_every_command(
    page: Path, expected: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "secrets.yml").write_text("train_job_environment: {API_TOKEN: x}\n")
    (tmp_path / "nodes").write_text("node-1\nnode-2\n")
    for name, value in {
        **{"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node-[1-2]"},
        **{"PBS_JOBID": "7", "PBS_NODEFILE": str(tmp_path / "nodes")},
        **{"LSB_JOBID": "7", "LSB_HOSTS": "node-1 node-2"},
    }.items():
        monkeypatch.setenv(name, value)
    seen = set()
    for words in commands(page):
        # The installed command is named `train`.
        first = 1 if words[0] == "train" else 3
        if first == 3 and words[1:3] != ["-m", "train"]:
            continue
        until = words.index("--") if "--" in words else None
        given = [os.path.expandvars(word) for word in words[first:until]]
        try:
            args = build_parser().parse_args(given)
        except SystemExit:
            pytest.fail(f"not accepted: {shlex.join(words)}")
        if args.command == "playbook":
            assert args.playbook in ansible_program.names(), words
        else:
            assert set(parse_variables(args.variables)[0]) <= KNOWN | SETTINGS, words
        seen.add(args.command)
    assert seen == expected


def check_worker(*arguments: str, folder: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, str(WORKER), *arguments, cwd=folder, env=clean_environment())


#: The short names of variables in playbooks for clouds.
OF_CLOUDS = {
    "gcp": {"state", "project", "cluster", "count", "cloud_max_hours", "zones"},
    "aws": {"state", "region", "cluster", "count", "cloud_max_hours", "zones"},
}


@pytest.mark.parametrize("cloud", OF_CLOUDS)
def test_the_playbooks_for_clouds_take_every_variable(cloud: str) -> None:
    playbook = f"playbooks/{cloud}.yml"
    given = [words for words in commands(doc("cloud")) if playbook in words]
    assert len(given) >= 3
    known = {name for name in KNOWN if name.startswith(f"{cloud}_instances_")}
    for words in given:
        assert words[0] == ".venv/bin/ansible-playbook", words
        values = [value for option, value in itertools.pairwise(words) if option == "-e"]
        names = set(parse_variables(values)[0])
        assert "state" in names, words
        assert names <= OF_CLOUDS[cloud] | known, words
    text = (REPOSITORY / playbook).read_text()
    assert all(f"-e {name}=" in text for name in OF_CLOUDS[cloud])


@pytest.mark.parametrize("page", [doc("cloud"), doc("supervision")], ids=name_of)
def test_replaced_hosts_pass_the_firewalls_of_the_others(page: Path) -> None:
    """With --limit, setup.yml changes only the new host's firewall."""
    texts = [text for kind, text in FENCE.findall(page.read_text()) if kind == "yaml"]
    texts = [text for text in texts if "TRAIN_LOST_HOSTS" in text]
    assert texts
    for text in texts:
        command = yaml.safe_load(text)["train_job_replace"]
        last = command.rpartition(" && ")[2]
        assert last.endswith("playbooks/setup.yml --tags firewall"), command


@functools.cache
def worker_options() -> set[str]:
    """Return the options of the training program, each switch in its two forms."""
    return set(re.findall(r"--[a-z][a-z-]*[a-z]", check_worker("--help").stdout))


def test_the_training_program_takes_every_command(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(blocks(TRAINING, "python")[0])
    taken = 0
    for words in commands(TRAINING):
        if words[1:2] == ["train/worker.py"]:
            given = words[2:]
        elif words[1:4] == ["-m", "train", "run"] and "--" in words and "--script" not in words:
            given = words[words.index("--") + 1 :]
        else:
            continue
        done = check_worker(*given, "--check", folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), words
        taken += 1
    assert taken >= 3


def test_every_option_of_the_training_program_is_described() -> None:
    options = worker_options() - {"--help"}
    # A switch is described once, in either form.
    named = set(re.findall(r"`(--[a-z][a-z-]*)", prose(TRAINING)))
    wanted = {option for option in options if not option.startswith("--no-")}
    assert len(wanted) > 40
    assert wanted <= named, sorted(wanted - named)
    others = {"--include"}  # the launcher's
    assert named <= options | others, sorted(named - options - others)


PAGES_OF_OPTIONS = ("dashboard", "hosts", "jobs", "doctor", "metrics", "supervision", "your-script")


@pytest.mark.parametrize("page", [README, *map(doc, PAGES_OF_OPTIONS)], ids=name_of)
def test_options_that_a_text_names(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    others = {"--check", "--limit", "--tags", *INDEXES}  # Ansible's, and of requirements.txt
    named = set(re.findall(r"`(--[a-z][a-z-]*)", prose(page))) - others
    for command in ("run", "logs", "tensorboard", "clean", "compare", "doctor", "dashboard"):
        with pytest.raises(SystemExit):
            build_parser().parse_args([command, "--help"])
    known = {word.strip("[],") for word in capsys.readouterr().out.split()} | worker_options()
    assert named <= known, sorted(named - known)


def test_playbooks_and_targets_that_are_named_exist() -> None:
    text = "".join(page.read_text() for page in PAGES)
    playbooks = set(re.findall(r"playbooks/\w+\.yml", text))
    assert len(playbooks) >= 5
    for path in playbooks:
        assert (REPOSITORY / path).is_file(), path
    targets = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    used = {words[1] for page in PAGES for words in commands(page) if words[0] == "make"}
    used |= set(re.findall(r"`make ([\w-]+)", text))
    assert {"train", "test", "lint"} <= used
    assert used <= targets, sorted(used - targets)


def test_the_architecture_names_files_that_exist_and_a_walk_of_at_most_40() -> None:
    text = doc("architecture").read_text()
    paths = re.findall(r"\b(?:train|roles|playbooks|docs|tests)(?:/[\w.-]*\w)+", text)
    assert len(set(paths)) > 40
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []
    walk = re.findall(r"^\| (\d+) \| `(.+?)` \|", text, re.MULTILINE)
    assert [int(number) for number, _ in walk] == list(range(1, len(walk) + 1))
    assert len(walk) <= 40
    assert all((REPOSITORY / path).is_file() for _, path in walk)


def test_examples_in_python_are_right_and_what_they_import_exists() -> None:
    examples = [example for page in PAGES for example in blocks(page, "python")]
    assert len(examples) >= 6
    imported = set()
    for tree in map(ast.parse, examples):
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("train"):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    assert hasattr(module, alias.name), alias.name
                    imported.add(alias.name)
    assert "run" in imported


def test_examples_of_formats_are_json_with_documented_fields() -> None:
    documented = set(re.findall(r"`(\w+)`", doc("formats").read_text()))
    examples: list[dict[str, Any]] = []
    for block in blocks(doc("formats"), "json"):
        lines = block.splitlines()
        texts = lines if all(line.endswith("}") for line in lines) else [block]
        examples += map(json.loads, texts)
    assert len(examples) >= 8
    for example in examples:
        inner = [rank for rank in example.get("ranks", []) if isinstance(rank, dict)]
        for known in [example, example.get("progress", {}), *inner]:
            assert set(known) <= documented, sorted(set(known) - documented)


def test_variables_that_a_rank_finds_are_documented() -> None:
    names = {value for key, value in vars(rank_environment).items() if key.startswith("ENV_")}
    assert names == set(re.findall(r"`((?:TRAIN|TF_GRPC|GLIBC)_[A-Z_]+)`", YOUR_SCRIPT.read_text()))


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_example_inventories(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = DataLoader()
    inventory = InventoryManager(loader, [str(example)])
    variables_of = VariableManager(loader, inventory).get_vars
    groups = {group.name for group in inventory.groups["all"].child_groups} - {"ungrouped"}
    assert {"worker"} <= groups <= set(records.TASK_TYPES)
    # Including commented ones, which users are meant to enable.
    text = "".join(path.read_text() for path in sorted(example.rglob("*.yml")))
    assert set(VARIABLE.findall(text)) <= KNOWN
    hosts = [host for name in groups - {"evaluator"} for host in inventory.groups[name].get_hosts()]
    given = [variables_of(host=host) for host in hosts]
    assert "WARNING" not in capsys.readouterr().err
    places = [(variables["ansible_host"], variables["train_job_port"]) for variables in given]
    assert len(set(places)) == len(places), places
