PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-engine soak bench image-test lint format types arch check lock clean

help:  ## print this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(STAMP)  ## make .venv with everything but vLLM

$(STAMP): pyproject.toml requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is older than 3.11: call make PYTHON=python3.11 (or newer)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: install  ## run the whole product on two simulated engines; ends with a verdict and a report
	$(BIN)/sluicegate demo --out out/demo

test: install  ## run all tests
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

test-engine: install  ## run the tests on real vLLM, the CPU build, installed once outside the checkout
	$(BIN)/python -m tests.engine.install
	$(BIN)/python -m pytest tests/engine --timeout 600

soak: install  ## ten minutes of twenty times what the engines can serve, then half an hour of everything; prints figures
	$(BIN)/python -m tests.soak overload --seconds 600 --factor 20
	$(BIN)/python -m tests.soak mixed --seconds 1800

bench: install  ## print speed and accuracy, beside peers where installed
	$(BIN)/python -m tests.bench

image-test: install  ## build the image on Debian packages, run it, ask it, drain it (as root)
	$(BIN)/python -m tests.shipping.image

lint: install  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install  ## rewrite in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: install  ## mypy --strict
	$(BIN)/mypy

arch: install  ## who may import whom
	$(BIN)/lint-imports

check: lint types arch  ## everything but the tests

lock:  ## resolve pyproject.toml anew into requirements/*.txt
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet pip-tools
	$(VENV)-lock/bin/pip-compile $(LOCK_FLAGS) -o requirements/runtime.txt pyproject.toml
	$(VENV)-lock/bin/pip-compile $(LOCK_FLAGS) --extra bench --extra dev --extra otel \
	  -o requirements/dev.txt pyproject.toml
	$(VENV)-lock/bin/pip-compile $(LOCK_FLAGS) --extra bench -o requirements/bench.txt pyproject.toml
	$(VENV)-lock/bin/pip-compile $(LOCK_FLAGS) --all-build-deps --only-build-deps \
	  -o requirements/build.txt pyproject.toml
	rm -rf $(VENV)-lock

LOCK_FLAGS := --quiet --generate-hashes --allow-unsafe --strip-extras --no-header --no-annotate \
  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links

clean:  ## remove the environment, caches and results
	rm -rf $(VENV) out dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
