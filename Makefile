# make train   trains on inventory/local, with two workers on this machine
# make unit    runs the tests that start no jobs
# make test    runs the unit tests and the tests of jobs on this machine
# make hosts   runs the tests with hosts in containers: SSH, Slurm, the set-up roles, Molecule
# make help    lists the rest
PYTHON ?= python3
BIN := .venv/bin
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
# If it were set, as in many container images, every command would compile the project again.
unexport PYTHONDONTWRITEBYTECODE
# If it were set, modules that Ansible runs on this machine would be read byte by byte.
unexport PYTHONUNBUFFERED

.PHONY: help train setup unit test hosts soak molecule lint lint-ansible lint-python lock bench docs reference pictures clean

help:
	@echo "make train      set up TensorFlow and train on inventory/local (ARGS='...' for python -m train run)"
	@echo "make setup      set up TensorFlow only (INVENTORY=... for another inventory, SETUP_ARGS='...' for ansible-playbook)"
	@echo "make unit       run the unit tests: one minute, no TensorFlow, no Docker engine"
	@echo "make test       run the unit tests and the tests of jobs on this machine"
	@echo "make hosts      run the tests with hosts in containers: SSH, Slurm, the set-up roles, Molecule; needs a Docker engine"
	@echo "make soak       run the tests that take too long for every change: two hours, before a release"
	@echo "make lint       ansible-lint, yamllint, codespell, ruff, import-linter, mypy, syntax checks"
	@echo "make bench      compare with two commands typed by hand"
	@echo "make docs       build the documentation as a site, in .cache/site"
	@echo "make reference  generate docs/variables.md and docs/schemas from the code"
	@echo "make pictures   generate the pictures of the documentation from real jobs; needs Chromium"
	@echo "make lock       update the requirement locks"
	@echo "make clean      remove the environments and caches of this folder"

INVENTORY ?= inventory/local

# Prints a line every 15 s until the command that follows has ended.
alive = @(while sleep 15 > /dev/null; do echo "  still running: $(1)"; done) & trap "kill $$!" EXIT;

# The control environment. pip installs only the locked files. All modules are compiled, on all cores, except the
# collections of `ansible`, most of which are never used.
.venv/control.stamp: requirements/control.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
	  sys.exit(0 if (3, 11) <= v <= (3, 13) else "Python %d.%d is too %s: the control node needs 3.11, 3.12 or 3.13; set PYTHON=..." % (v + ("old" if v < (3, 11) else "new",)))'
	@echo "Creating .venv/ with Ansible from locked packages: about 75 MB to download"
	$(call alive,venv) $(PYTHON) -m venv .venv
	$(call alive,pip) $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements/control.txt
	$(call alive,compileall) $(BIN)/python -m compileall -qq -j 0 -x ansible_collections .venv/lib
	ln -sf ../../train/cli/train $(BIN)/train
	@touch $@

.venv/dev.stamp: .venv/control.stamp requirements/dev.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	@touch $@

setup: .venv/control.stamp
	$(BIN)/ansible-playbook -i $(INVENTORY) playbooks/setup.yml $(SETUP_ARGS)

train: setup
	$(BIN)/python -m train run -i $(INVENTORY) $(ARGS)

# Unit tests are often waiting, so there are more processes than cores.
UNIT_WORKERS ?= 6

unit: .venv/dev.stamp
	$(BIN)/python -m pytest -n $(UNIT_WORKERS) --dist worksteal tests/unit $(ARGS)

WORKERS ?= 3

# Hosts of pytest and Molecule run in Docker. Without an engine, pytest reports the skipped tests; in CI, it fails.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
HOST_TESTS := $(addprefix tests/integration/, ssh roles slurm cloud)

test: .venv/dev.stamp
	$(PYTEST) -m "not soak" $(HOST_TESTS:%=--ignore=%) $(ARGS)

hosts: .venv/dev.stamp
	$(PYTEST) -m "not soak" $(HOST_TESTS) $(ARGS)

# First the long forms of the randomized tests, and of the tests of a control node without a network and of Slurm's
# time limit. They run in one process with their output shown. Then the other tests with the mark soak.
LONG_TESTS := $(addprefix tests/integration/, ssh/test_faults.py local/test_training_resume.py slurm/test_slurm_jobs.py)

soak: export SOAK_FAULTS ?= 50
soak: export SOAK_KILLS ?= 20
soak: export KILL_POINTS ?= 20
soak: export CUT_SECONDS ?= 300
soak: export SLURM_REAL_LIMIT ?= 1
soak: .venv/dev.stamp
	$(BIN)/python -m pytest -s $(LONG_TESTS) $(ARGS)
	$(PYTEST) -m soak tests/integration $(LONG_TESTS:%=--ignore=%) $(ARGS)

# Creates the hosts at the start, and removes them at the end, also after Ctrl-C.
molecule: .venv/dev.stamp
	@export PATH="$(CURDIR)/$(BIN):$$PATH"; trap 'molecule destroy' INT TERM; molecule test

lint: .venv/dev.stamp
	$(MAKE) --no-print-directory -j --output-sync lint-ansible lint-python docs

lint-ansible:
	$(BIN)/ansible-lint --offline --strict
	$(BIN)/ansible-config validate -t all
	$(BIN)/ansible-playbook --syntax-check playbooks/*.yml

lint-python:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/yamllint --strict .
	$(BIN)/codespell
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m mypy -p train.cli -p train.gang -p bench
	$(BIN)/python -m mypy tests docs/reference.py docs/schemas.py
	cd train && ../$(BIN)/python -m mypy --config-file ../pyproject.toml --explicit-package-bases worker.py host training collectives
	$(BIN)/python -m mypy -p ansible_collections.tensorflow_ansible.cluster.plugins

# Versions are kept unless ARGS=--upgrade or ARGS='--upgrade-package NAME'.
UV_COMPILE = $(CURDIR)/$(BIN)/uv pip compile --no-config --universal --generate-hashes --no-header --no-emit-index-url --quiet $(ARGS)

lock: .venv/dev.stamp
	cd requirements && $(UV_COMPILE) --python-version 3.11 control.in -o control.txt
	cd requirements && $(UV_COMPILE) --python-version 3.11 -c control.txt controller.in -o controller.txt
	cd requirements && $(UV_COMPILE) --python-version 3.11 -c control.txt mlflow.in -o mlflow.txt
	cd requirements && $(UV_COMPILE) --python-version 3.11 -c control.txt -c mlflow.txt dev.in -o dev.txt
	# tf-keras would install tensorflow in addition to tensorflow-cpu.
	cd roles/tensorflow/files && echo tensorflow | $(UV_COMPILE) --python-version 3.10 --excludes /dev/stdin cpu.in -o cpu.txt
	cd roles/tensorflow/files && $(UV_COMPILE) --python-version 3.10 gpu.in -o gpu.txt
	cd roles/tensorflow/files && $(UV_COMPILE) --python-version 3.11 jax-cpu.in -o jax-cpu.txt
	cd roles/tensorflow/files && $(UV_COMPILE) --python-version 3.11 jax-gpu.in -o jax-gpu.txt
	# Packages in TensorFlow's environment are excluded.
	cd examples/tfds && sed -n 's/^\([^ ]*\)==.*/\1/p' ../../roles/tensorflow/files/cpu.txt | $(UV_COMPILE) --python-version 3.11 \
	  -c ../../roles/tensorflow/files/cpu.txt --excludes /dev/stdin requirements.in -o requirements.txt

bench: .venv/dev.stamp
	$(BIN)/python -m bench

# Pages and the files that they link to keep their paths, so that links work as in the repository. The links that form
# the collection are excluded, because they would duplicate pages.
SITE := .cache/site
docs: .venv/dev.stamp
	rm -rf $(SITE)
	mkdir -p $(SITE)/pages
	git ls-files ':!playbooks/collections' | tar -cf - -T - | tar -xf - -C $(SITE)/pages
	cp docs/site.toml $(SITE)/zensical.toml
	cd $(SITE) && $(CURDIR)/$(BIN)/zensical build --strict
	@echo "the site: $(SITE)/site/index.html"

reference: .venv/control.stamp
	$(BIN)/python docs/reference.py > docs/variables.md
	$(BIN)/python -m docs.schemas docs/schemas

pictures: setup .venv/dev.stamp
	PYTHONPATH=. $(BIN)/python docs/pictures/make.py
	PYTHONPATH=. $(BIN)/python docs/pictures/dashboard.py

clean:
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .ansible
