# The verbs of this repository; `make` alone lists them. Needs python3 (3.10 or newer) and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROFILE ?= local_dev
RAM_FLOOR ?= 5GB
WORKERS ?= 4
# Files in their order, each by one of so many processes (tests/forked_workers.py); WORKERS=0 runs all
# in one. Bytecode is kept: the tests start hundreds of processes. One thread of OpenMP each: more would
# wait for each other, and waiting takes processors.
PYTEST = env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/pytest --workers $(WORKERS)
QUICK := augmentation controller knobs profile runtime sampling spec statistics

.DEFAULT_GOAL := help
.PHONY: help setup peers tune test lint check format docs bench bench-full bench-control bench-check hunt mutants lerobot lerobot-train trainers \
  compat endurance clean distclean

help: ## list the verbs
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

setup: $(READY) ## make .venv with everything in it, from the tested versions

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "make: there is no '$(PYTHON)'. Install Python 3.10 to 3.13, or name one:" \
	    "make setup PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "make: '$(PYTHON)' is $$($(PYTHON) --version 2>&1); autoloader needs Python 3.10 to" \
	    "3.13. Name one: make setup PYTHON=python3.12" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  rm -rf $(VENV); \
	  echo "make: '$(PYTHON) -m venv' fails. On Debian and Ubuntu: apt install python3-venv" >&2; \
	  exit 2; }
	@echo "installing into $(VENV) (TensorFlow and torch are large: this takes minutes)"
	@# Bytecode by all processors: pip makes it by one, and none of an editable package. What tests
	@# alone import makes its own.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
	  --constraint constraints.txt --editable '.[all,dev]'
	$(BIN)/python -m compileall -q autoloader
	@$(BIN)/python -m compileall -qq -j 0 -x '/(tests|moto|ray)/' \
	  $(VENV)/lib/python*/site-packages || true # some are templates
	@touch $(READY)

peers: $(READY) ## install what only the bench's peers need (Grain, datasets), beside .venv
	$(BIN)/python -m bench.peers

tune: $(READY) ## find the knobs that suit this machine, on the demo mixture
	$(BIN)/autoloader.tune --host-profile $(PROFILE) --ram-floor $(RAM_FLOOR) $(ARGS)

test: $(READY) ## run the whole test suite
	$(PYTEST) $(ARGS)

lint: $(READY) ## check style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint ## for while you edit: lint, and the tests that start no process (three minutes)
	$(PYTEST) $(addprefix tests/,$(QUICK)) $(ARGS)

format: $(READY) ## rewrite files in the style that lint wants
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## check links, commands, tables and English of the pages, run their Python, build the site (docs/_build)
	$(BIN)/python docs/check.py $(ARGS)
	@if command -v npm >/dev/null; then \
	  test -d tools/grammar/node_modules || npm ci --silent --no-audit --no-fund --prefix tools/grammar; \
	  echo node tools/grammar/check.mjs; node tools/grammar/check.mjs; \
	else echo "English is not checked: there is no npm (Node.js 20 or newer)"; fi
	$(BIN)/python tools/run_blocks.py
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs docs/_build

bench: $(READY) ## measure against others; prints ratios of one run (ten minutes)
	$(BIN)/python -m bench $(ARGS)

bench-full: $(READY) ## measure everything there is a scenario for (hours)
	$(BIN)/python -m bench --full $(ARGS)
	$(BIN)/python -m bench.endurance
	@test "$$(id -u)" = 0 || echo "left out, as it needs root: make bench-control"
	test "$$(id -u)" != 0 || $(BIN)/python -m bench.control

bench-control: $(READY) ## the controller under real disturbances, each promise checked (needs root)
	$(BIN)/python -m bench.control $(ARGS)

bench-check: $(READY) ## fail where counts or ratios are worse than bench/baseline.json allows
	$(BIN)/python -m bench.gate $(ARGS)

hunt: $(READY) ## hold two million rows against the files under forks, kills, stops and resumes (an hour)
	$(BIN)/python tools/hunt/hunt.py $(ARGS)

mutants: $(READY) ## change the controller's rules one by one, and list changes that no test notices (minutes)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt mutmut
	$(BIN)/mutmut run $(ARGS); $(BIN)/mutmut results

lerobot: $(READY) ## hold samples against the real lerobot, which is installed beside .venv (gigabytes)
	$(BIN)/python tools/lerobot/witness.py $(ARGS)

lerobot-train: $(READY) ## train by the real lerobot-train on both loaders' batches (gigabytes)
	$(BIN)/python tools/lerobot/training.py $(ARGS)

trainers: $(READY) ## run the trainers' pages in the projects' own sources, which lie below DIR (gigabytes)
	$(BIN)/python tools/lerobot/trainers.py $(DIR) $(ARGS)

compat: $(READY) ## try the wheel beside others' pins, and at both ends of its own (gigabytes, an hour)
	$(BIN)/python tools/compat/compat.py $(ARGS)

endurance: $(READY) ## measure what the loader survives: retunes, kills, opening and closing
	$(BIN)/python -m bench.endurance $(ARGS)

clean: ## remove caches and build outputs
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist docs/_build
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print | xargs rm -rf

distclean: clean ## remove .venv as well
	rm -rf $(VENV) $(VENV)-peers $(VENV)-lerobot $(VENV)-lerobot-train $(VENV)-gr00t $(VENV)-compat
