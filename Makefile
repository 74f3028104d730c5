# Two commands do all the set-up on a fresh Debian 12 machine: `make demo` and `make test`.
SHELL := /bin/bash
BIN := .venv/bin

.PHONY: help setup check test test-unit test-sim test-workflow test-cluster test-browser demo demo-down format

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: ## packages and the virtual environment (.venv)
	@scripts/setup.sh --with chromium

demo: ## the whole chain on real text, on a four-host Slurm that it sets up itself
	@scripts/demo.sh up

demo-down: ## end exactly what the demo started
	@scripts/demo.sh down

check: setup ## lint, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/python scripts/lint_workflow.py
	$(BIN)/shellcheck scripts/*.sh slurm/dev/*.sh slurm/dev/lib/*.sh bench/*.sh .ci/run

test: test-unit test-workflow test-cluster test-browser ## every test; nothing in tests/cluster is skipped

test-unit: setup
	$(BIN)/pytest --numprocesses auto --maxprocesses 8 --dist loadfile tests/unit
	$(BIN)/pytest tests/sim

test-sim: setup ## 10,000 seeds of simulated faults on checkpoints (`make test` plays 200)
	STEELRAIL_SIM_SEEDS=10000 $(BIN)/pytest tests/sim

test-workflow: setup
	$(BIN)/pytest tests/workflow

test-cluster: setup
	$(BIN)/pytest --timeout 1200 tests/cluster

test-browser: setup
	$(BIN)/pytest tests/browser

format: setup ## rewrite sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow
