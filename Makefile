# Two commands do all their own set-up on a fresh machine: `make demo` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FOLDERS := planner cluster actors deploy
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-slow check lint types format clean

demo: $(VENV)/.installed
	@start=$$SECONDS; $(BIN)/twinspark demo; status=$$?; echo "make demo took $$((SECONDS - start)) s"; exit $$status

test: $(VENV)/.installed-dev
	@start=$$SECONDS; $(MAKE) --no-print-directory check; status=$$?; \
	echo "make test took $$((SECONDS - start)) s"; exit $$status

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

check: lint types
	$(BIN)/python -m pytest -m "not slow"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	@mkdir -p .types/twinspark
	@for folder in $(FOLDERS); do ln -sfn ../../$$folder .types/twinspark/$$folder; done
	$(BIN)/mypy .types/twinspark

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "twinspark needs Python 3.11 or newer, got " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing twinspark and what it needs (torch and Ray: a few minutes the first time)"
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing what the tests need"
	$(PIP) --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .types build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
