# `make` lists the targets. Everything happens in .venv, which the first target that needs it sets up.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Two more than the cores of a small machine: many tests wait for other processes.
TEST_PROCESSES ?= 4
# Tests that have longer variants under --more-faults.
LONGER := $(shell grep -rl more_faults tests --include='test_*.py')

# Modules are compiled when they are first imported, not all 11,000 during the installation.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help train test faults lowest lint format docs gallery user bench wheel clean

help:  ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

$(VENV)/installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --no-compile --editable '.[tensorflow,train,dev]'
	touch $@

train: $(VENV)/installed  ## set up, then train on the built-in data (two minutes, no network needed after set-up)
	$(BIN)/python -m trainers.cifar --preset quick

test: $(VENV)/installed  ## set up, then run all tests in four processes (TESTS=tests/linear for a part of them)
	$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --no-loadscope-reorder $(TESTS)

faults: $(VENV)/installed  ## 100 SIGKILLs and many other faults; goes on where it was stopped (FAULTS=50 SEED=0 KINDS="kills soak")
	$(BIN)/python -m tests.faults --faults $(or $(FAULTS),50) --seed $(or $(SEED),0) $(if $(KINDS),--kinds $(KINDS))
	$(if $(KINDS),,$(BIN)/python -m pytest $(LONGER) --more-faults)

lowest:  ## run the tests with the lowest versions that setup.cfg allows (TESTS=tests/linear for a part of them)
	$(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/pip install --quiet --upgrade pip uv
	$(VENV)-lowest/bin/uv pip compile --quiet --python $(VENV)-lowest/bin/python --resolution lowest-direct \
		--extra tensorflow-cpu --extra train --extra test --output-file $(VENV)-lowest/constraints.txt setup.cfg
	$(VENV)-lowest/bin/pip install --quiet --constraint $(VENV)-lowest/constraints.txt --editable '.[tensorflow-cpu,train,test]'
	$(VENV)-lowest/bin/python -m pytest --numprocesses $(TEST_PROCESSES) --no-loadscope-reorder $(TESTS)

lint: $(VENV)/installed  ## check style, docstrings, spelling, annotations, imports and types
	$(BIN)/ruff check .
	$(BIN)/ruff check --select ANN201,ANN204,ANN205,ANN206 --config lint.flake8-annotations.ignore-fully-untyped=false .
	$(BIN)/lint-imports --no-cache
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/installed  ## put the code into the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/installed  ## build the site into build/site; a warning is an error
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -q docs build/site

gallery: $(VENV)/installed  ## run the examples anew and record what they print for the site (EXAMPLES=draw_shapes for a part)
	$(BIN)/python docs/gallery/record.py $(EXAMPLES)

user: docs  ## play a new user: fresh environments, the wheel, README.md, TensorBoard and the site in Chromium
	$(BIN)/python .ci/new_user.py --screenshots build/seen

bench: $(VENV)/installed  ## run the benchmarks, each against an alternative (half an hour; PyTorch only if it is installed)
	$(BIN)/python benchmarks/everything.py

wheel: $(VENV)/installed  ## build the wheel into dist/
	$(BIN)/python -m build --no-isolation --wheel

clean:  ## remove what was set up and built; runs/ stays
	rm -rf $(VENV) $(VENV)-lowest build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
