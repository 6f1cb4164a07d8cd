# Everything starts here: `make` lists the targets. Set-up happens by itself, in .venv.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
SERVICES := $(BIN)/python -m tests.services
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test check lint dev services-up services-down bench soak clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.run ## the main job on real input, without any service
	@$(BIN)/python -m examples.census

test: .venv/.test ## start the services it needs, run every test
	@$(BIN)/python -m pytest --numprocesses 3 --dist loadfile

check: lint test ## format, lint, types, floors, and the tests: what CI runs

lint: .venv/.test ## the part of check that needs no service
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

dev: .venv/.test ## Postgres, RabbitMQ and a worker in this terminal
	@$(SERVICES) run $(BIN)/lattice-tasks dev

services-up: .venv/.test ## start Postgres and RabbitMQ, leave them running, print their addresses
	@$(SERVICES) up

services-down: .venv/.test ## stop them
	@$(SERVICES) down

bench: .venv/.test ## side by side with other task queues
	@$(BIN)/python -m benchmarks

soak: .venv/.test ## the long fault tests
	@$(BIN)/python -m pytest -m soak

clean: ## stop the services, remove everything that was made here
	@if [ -e .venv/.test ]; then $(SERVICES) clean; fi
	@rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist *.egg-info
	@rmdir .services 2>/dev/null || true
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.run: setup.cfg pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) install --editable .
	@touch $@

.venv/.test: setup.cfg pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) install --editable '.[test]'
	@touch .venv/.run $@
