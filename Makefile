# Every target sets up what it needs: a virtual environment in .venv, with the project in it.

PYTHON ?= python3
INPUT ?=
STORE ?=
THREADS ?= 10000

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test check bench bench-storage bench-compaction bench-analytics clean

help: ## Show what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  make demo INPUT=FILE.jsonl STORE=URI   the demo on your own conversations or store"

demo: $(STAMP) ## Run the main job end to end: write, compact, read back, compare
	@$(BIN)/python -m logstore.demo \
		$(if $(INPUT),--input "$(INPUT)") $(if $(STORE),--store "$(STORE)")

test: $(STAMP) ## Run the whole test suite
	@$(BIN)/python -m pytest -n 2

check: $(STAMP) ## Lint, check the format and the types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(STAMP) ## Run the channel and the production benchmark (JSON lines and a summary)
	@$(BIN)/python -m tests.benchmarks.channel_bench
	@$(BIN)/python -m tests.benchmarks.production_bench

bench-analytics: $(STAMP) ## Ask a million writes in place, on PostgreSQL and on a Parquet export (needs PostgreSQL)
	@$(BIN)/python -m pip install --quiet -e '.[bench]'
	@$(BIN)/python -m tests.benchmarks.analytics_bench --threads $(THREADS)

bench-storage: $(STAMP) ## Bytes in every mode and cadence, here and elsewhere (CONVERSATIONS=FILE.jsonl adds a recording)
	@$(BIN)/python -m tests.benchmarks.storage_bench \
		$(if $(CONVERSATIONS),--conversations "$(CONVERSATIONS)")

bench-compaction: $(STAMP) ## MB/s that one core merges
	@$(BIN)/python -m tests.benchmarks.compaction_bench

clean: ## Remove the environment, the demo's store and all caches
	rm -rf $(VENV) demo-store build dist *.egg-info \
		.mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12"; exit 1; }
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@
