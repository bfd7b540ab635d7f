# Every target makes the environment that it needs. `make serve` and `make test` are the two to know.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install serve test lint format types imports docs check interop clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Installing again only when a dependency changed; the package itself is installed as editable.
$(STAMP): pyproject.toml requirements/constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint requirements/constraints.txt --editable '.[dev]'
	@touch $(STAMP)

install: $(STAMP)  ## make .venv with everything that serving, tests and benchmarks need

serve: $(STAMP)  ## start a cluster on this machine with the bundled demo model (ARGS="--port 9000")
	@exec $(BIN)/triptych serve $(ARGS)

test: $(STAMP)  ## run the tests (ARGS="tests/render -k media"), JOBS=2 files at a time
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

lint: $(STAMP)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)  ## apply ruff's fixes and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)  ## mypy, strict, over our packages
	$(BIN)/mypy

imports: $(STAMP)  ## the dependency table of docs/architecture.md
	$(BIN)/lint-imports

docs: $(STAMP)  ## fail where a generated page is out of date
	$(BIN)/python -m deploy.reference --check docs/configuration.md
	$(BIN)/python docs/errors_page.py --check

interop: $(STAMP)  ## compare our renderer with vLLM's, request by request (ARGS="--families text")
	$(BIN)/python -m interop $(ARGS)

check: lint types imports docs  ## everything but the tests

clean:  ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
