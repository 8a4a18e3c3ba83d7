# `make` lists the targets. All targets use .venv, which is created when it is first needed.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# More processes than the cores of a small machine, because many tests wait for other processes.
TEST_PROCESSES ?= 4

# Compile modules when they are first imported, not all 11,000 during the installation.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help train test slow lowest nightly lint format docs wheel clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

$(VENV)/installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	PYTHONWARNINGS='ignore:Editable installation' \
		$(BIN)/pip install --quiet --no-compile --editable '.[tensorflow,train,dev]'
	touch $@

train: $(VENV)/installed  ## set up, then train on the built-in data (about a minute on two fast cores, offline after set-up)
	$(BIN)/python -m trainers.cifar --preset quick

test: $(VENV)/installed  ## set up, then run the tests in four processes (TESTS=tests/linear: a part of them)
	$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(TESTS)

slow: $(VENV)/installed  ## run all tests, with the slow tests and long variants that `make test` leaves out (an hour)
	$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder --slow $(TESTS)

lowest:  ## run the tests with the lowest versions that setup.cfg allows (TESTS=tests/linear: a part of them)
	$(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/pip install --quiet --upgrade pip uv
	$(VENV)-lowest/bin/uv pip compile --quiet --python $(VENV)-lowest/bin/python --resolution lowest-direct \
		--extra tensorflow --extra jax --extra train --extra test --output-file $(VENV)-lowest/constraints.txt setup.cfg
	$(VENV)-lowest/bin/pip install --quiet --constraint $(VENV)-lowest/constraints.txt --editable '.[tensorflow,jax,train,test]'
	$(VENV)-lowest/bin/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(TESTS)

nightly:  ## run the tests with keras-nightly, which may fail (TESTS=tests/linear: a part of them)
	$(PYTHON) -m venv $(VENV)-nightly
	$(VENV)-nightly/bin/pip install --quiet --upgrade pip
	$(VENV)-nightly/bin/pip install --quiet --editable '.[tensorflow,jax,grain,train,test]'
	# Both packages install the module `keras`.
	$(VENV)-nightly/bin/pip uninstall --quiet --yes keras keras-nightly
	$(VENV)-nightly/bin/pip install --quiet --no-deps --pre keras-nightly
	$(VENV)-nightly/bin/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(TESTS)

lint: $(VENV)/installed  ## check style, docstrings, spelling, annotations, imports and types
	$(BIN)/ruff check .
	@# Private names of other packages, without exceptions.
	$(BIN)/ruff check --isolated --ignore-noqa --select SLF001 --exclude '_keras_internals,_tensorflow_internals' idmatters_tf models trainers benchmarks examples
	$(BIN)/ruff check --select ANN201,ANN204,ANN205,ANN206 --config lint.flake8-annotations.ignore-fully-untyped=false .
	$(BIN)/lint-imports --no-cache
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/installed  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/installed  ## build the site in build/site, with warnings as errors, and check its links
	@# An interrupted or failed build may leave incomplete pages, which Sphinx would keep.
	@[ -e build/site.complete ] || rm -rf build/site
	@rm -f build/site.complete
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -q docs build/site
	$(BIN)/python .ci/check_links.py build/site
	@touch build/site.complete

wheel: $(VENV)/installed  ## build the wheel in dist/
	$(BIN)/python -m build --no-isolation --wheel

clean:  ## remove environments, builds and caches; keep runs/
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-nightly build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
