# Everything a person or a machine runs here goes through this file.
# Set-up happens once: it is repeated only when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
CODE   := src tests $(wildcard benchmarks)

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types test-fast test-slow format bench bench-solver bench-index bench-learn-embeddings bench-learn bench-service clean distclean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{ printf "  %-24s %s\n", $$1, $$2 }'

test: lint types test-fast ## Set up once, then lint, types and the quick tests

setup: $(STAMP) ## Create .venv and install the pinned dependencies

# The build backend goes in first, by its pin, so that no step resolves a version of its own.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hashcade needs Python >= 3.11, this is " + sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing pinned dependencies into $(VENV) (once)"
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

demo: $(STAMP) ## Learn, build, search and draw on scikit-learn's digits; writes demo/
	$(BIN)/python -m hashcade.demo

lint: $(STAMP) ## ruff: rules and formatting
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

format: $(STAMP) ## ruff: mend what can be mended
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

types: $(STAMP) ## mypy --strict on src
	$(BIN)/mypy --strict src

test-fast: $(STAMP) ## The quick tests alone
	$(BIN)/python -m pytest

test-slow: $(STAMP) ## The slow tests, with many more examples per property
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -m slow

bench: bench-solver bench-index bench-learn-embeddings bench-service ## All benchmarks

bench-solver: $(STAMP) ## The code solver against OR-tools
	$(BIN)/python benchmarks/solver.py

bench-learn-embeddings: $(STAMP) ## Hasher on embeddings of Cifar-100, and the solver's share
	$(BIN)/python benchmarks/learn_embeddings.py

bench-learn: $(STAMP) ## Both networks and losses on images of Cifar-100, 20 minutes each
	$(BIN)/python benchmarks/learn_images.py

# hnswlib is published as source: without a C++ compiler the benchmark goes on without it.
bench-index: $(STAMP) ## The index against faiss, hnswlib and usearch; writes docs/results
	-$(PIP) hnswlib
	$(BIN)/python benchmarks/index.py

bench-service: $(STAMP) ## The service under load, under kill -9, and beside the library; writes docs/results
	$(BIN)/python benchmarks/service.py

clean: ## Remove caches and build results
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests $(wildcard benchmarks) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## Remove .venv as well
	rm -rf $(VENV)
