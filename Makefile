# make train   trains on inventory/local: two workers on this machine
# make test    lints nothing, tests everything
# make help    tells the rest
PYTHON ?= python3
BIN := .venv/bin
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg

.PHONY: help train setup test molecule lint lock bench clean

help:
	@echo "make train      set up TensorFlow and train on inventory/local (ARGS='...' for python -m train run)"
	@echo "make setup      set up TensorFlow only (INVENTORY=... for another inventory)"
	@echo "make test       run all tests; those with SSH hosts need a Docker engine"
	@echo "make lint       ansible-lint, yamllint, ruff, mypy, syntax checks"
	@echo "make bench      measure against two commands typed by hand"
	@echo "make lock       make the requirement locks again"
	@echo "make clean      remove the environments and caches of this folder"

INVENTORY ?= inventory/local

# The control environment. pip looks up nothing but the locked files.
.venv/control.stamp: requirements/control.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
	  sys.exit(0 if (3, 11) <= v <= (3, 13) else "Python %d.%d is too %s: the control node needs 3.11, 3.12 or 3.13; set PYTHON=..." % (v + ("old" if v < (3, 11) else "new",)))'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/control.txt
	@touch $@

.venv/dev.stamp: .venv/control.stamp requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@touch $@

setup: .venv/control.stamp
	$(BIN)/ansible-playbook -i $(INVENTORY) playbooks/setup.yml

train: setup
	$(BIN)/python -m train run -i $(INVENTORY) $(ARGS)

test: .venv/dev.stamp
	$(BIN)/python -m pytest $(ARGS)

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/yamllint --strict .
	$(BIN)/ansible-lint --offline --strict
	$(BIN)/python -m mypy -p train.control -p tests
	cd train && ../$(BIN)/python -m mypy --config-file ../pyproject.toml --explicit-package-bases worker.py host
	cd roles && ../$(BIN)/python -m mypy --config-file ../pyproject.toml */library/*.py
	$(BIN)/ansible-config validate -t all
	$(BIN)/ansible-playbook --syntax-check playbooks/*.yml

bench: .venv/dev.stamp
	$(BIN)/python -m bench

clean:
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .ansible
