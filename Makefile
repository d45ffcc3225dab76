# `make test` and `make demo` set up what they need: Python 3.11 or newer with venv, git and make
# are enough. Override with e.g. `make test PYTHON=python3.12` or `make demo TORCH='torch==2.14.1'`.
# `make test EXAMPLES=10` tries ten times as many examples of each property.

VENV ?= .venv
CORE ?= .venv-core
TORCH ?= torch==2.13.0
SSD ?= .

export EXAMPLES ?= 1

FIT := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c '$(FIT)' 2>/dev/null && { echo $$python; break; }; done)

# Of a file's tests one worker runs most, which share what the file prepares; a worker that has
# none left takes over the last of the other's.
TWO := -n 2 --dist worksteal
COVER := --cov --cov-report= --cov-fail-under=0
PACKAGES := profiler planner executor teraio_cli
# The planner's tests, the trace's and the command line's: what must work where there is no torch,
# and a test of a page, which needs none.
CORE_TESTS := $(filter-out tests/test_cli_run.py tests/test_cli_profile%, $(wildcard \
	$(patsubst %.py,tests/test_%.py,$(notdir $(wildcard \
		planner/*.py planner/policies/*.py profiler/importers/*.py))) \
	tests/test_trace.py tests/test_sample_traces.py tests/test_policies.py tests/test_*_policy.py \
	tests/test_make_*.py tests/test_cli_*.py tests/test_troubleshooting.py))

.DEFAULT_GOAL := help
.PHONY: help venv demo test environments unit core coverage lint type bench compat soak clean

help: ## Show this list
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

venv: $(VENV)/.ready ## Make the environment with torch and the developers' tools

demo: $(VENV)/.ready ## Train a small language model in 60 % of the memory it needs
	$(VENV)/bin/python examples/run_demo.py

test: environments lint type unit core coverage ## Run everything that must pass: lint, types and all tests

environments:
	@+$(MAKE) --no-print-directory -j 2 $(VENV)/.torch $(CORE)/.ready

unit: $(VENV)/.ready ## Run the tests that need torch
	OMP_NUM_THREADS=1 $(VENV)/bin/pytest $(TWO) $(COVER) -m 'not thorough' $(CORE_TESTS:%=--ignore=%)

core: $(CORE)/.ready ## Run all other tests, where torch is not installed
	$(CORE)/bin/python -c "import importlib.util as u, sys; sys.exit(bool(u.find_spec('torch')))"
	OMP_NUM_THREADS=1 $(CORE)/bin/pytest $(TWO) $(COVER) --cov-append $(CORE_TESTS)

coverage: ## Show what the last `make unit core` covered; it has a floor
	$(CORE)/bin/coverage report --skip-covered

lint: $(VENV)/.ready ## Check style and formatting
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

type: $(VENV)/.ready ## Check types
	$(VENV)/bin/mypy $(PACKAGES)

bench: $(VENV)/.ready ## Measure this machine (SSD=DIR); results go to benchmarks/results
	$(VENV)/bin/python benchmarks/posix_store.py $(SSD)
	$(VENV)/bin/python benchmarks/overhead.py

compat: $(VENV)/.ready ## Run every program of docs/compatibility.md under teraio (five minutes)
	OMP_NUM_THREADS=1 $(VENV)/bin/pytest $(TWO) tests/compat

soak: $(VENV)/.ready ## Train thousands of steps that differ, kill and fault many runs (about half an hour)
	$(VENV)/bin/python benchmarks/soak.py
	OMP_NUM_THREADS=1 EXAMPLES=10 $(VENV)/bin/pytest $(TWO) tests/test_kills.py tests/test_faults.py \
		tests/test_hostile.py

clean: ## Remove environments, caches and what the demo made
	rm -rf $(VENV) $(CORE) build dist demo-out *.egg-info .coverage* .*_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# Apart from the rest, so that it can be made beside the other environment: two builds of this
# package at a time would write to one folder.
$(VENV)/.torch: pyproject.toml
	@$(require_python)
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet $(TORCH)
	@touch $@

$(VENV)/.ready: $(VENV)/.torch
	$(VENV)/bin/pip install --quiet -e '.[train,dev]'
	@touch $@

$(CORE)/.ready: pyproject.toml
	@$(require_python)
	$(PYTHON) -m venv $(CORE)
	$(CORE)/bin/pip install --quiet -e '.[plot]' 'pytest>=8' 'pytest-cov>=7' 'pytest-xdist>=3.6' \
		'hypothesis>=6.100'
	@touch $@

define require_python
$(or $(PYTHON),false) -c '$(FIT)' || { \
	echo 'error: $(if $(PYTHON),`$(PYTHON)` is not,found no) Python 3.11 or newer with venv' >&2; \
	echo >&2; echo 'hint: name one, as in `make test PYTHON=/usr/bin/python3.12`' >&2; exit 1; }
endef
