# qfold: `make demo` and `make test` set themselves up in a virtual environment. They need Linux, make and
# Python >= 3.11, as root or as a user, and a C compiler (taken from a Python wheel where there is none).

VENV   ?= .venv
PYTHON ?=
BIN    := $(VENV)/bin

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help venv demo test lint format bench clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-7s %s\n", $$1, $$2}' Makefile

# The stamps: base is what running qfold takes, test adds the tools of the checks.
$(VENV)/.base: pyproject.toml scripts/setup.sh
	@PYTHON="$(PYTHON)" scripts/setup.sh "$(VENV)" base
	@touch $@

$(VENV)/.test: $(VENV)/.base
	@PYTHON="$(PYTHON)" scripts/setup.sh "$(VENV)" test
	@touch $@

venv: $(VENV)/.test ## create the virtual environment with everything in it

demo: $(VENV)/.base ## compile, run and verify a real int8 sentence encoder
	@$(BIN)/python -m qfold.tools.demo

lint: $(VENV)/.test ## ruff and pyright
	@echo "== ruff check"
	@$(BIN)/ruff check .
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check .
	@echo "== pyright (strict on src/)"
	@$(BIN)/pyright --pythonpath "$(BIN)/python"

format: $(VENV)/.test ## let ruff fix and format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

test: lint ## lint, then lit and pytest
	@echo "== lit"
	@$(BIN)/lit -v --order=lexical lit_tests
	@echo "== pytest"
	@$(BIN)/python -m pytest

bench: $(VENV)/.test ## run the benchmarks: a table and a JSON file each
	@set -e; for f in benchmarks/[!_]*.py; do echo "== $$f"; $(BIN)/python "$$f"; done

clean: ## remove the virtual environment and everything built
	rm -rf "$(VENV)" build dist .pytest_cache .hypothesis .ruff_cache
	find lit_tests -name Output -type d -prune -exec rm -rf {} +
	find src tests benchmarks lit_tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
