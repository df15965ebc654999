# Targets for people and for CI. `make demo` and `make test` need Python 3.11 or newer with its venv module, and nothing else.
#
#   make demo    tune a simulated host end to end, in ./demo (no GPU needed)
#   make test    all tests with coverage; AUTOTUNER_HOST_TESTS=1 adds those that boot hosts of their own, as root; on all processors
#                (WORKERS=0 for one test after the other; PYTEST_ARGS="-k word" for some of them)
#   make test-hosts  as root: every fault in every phase of a night, on three booted hosts, into build/matrix
#                (CELLS=representative for the part of it that runs in CI, KILLS=300 for more kills at random instants)
#   make test-hosts-vm  as root, by hand: the faults that need a machine of its own (power cuts, clocks, memory, a bad line), on an
#                emulated one, into build/matrix-vm; takes hours on a busy machine (VM="power-cut or netem" for some of them)
#   make check   lint, types, import contracts, documents of the command line, tests
#   make bench   the tuner's own overhead
#   make bench-loadgen  the load generator beside its peers, in eight figures (BENCH="--quick" for a small run); installs them
#   make docs    write docs/cli.md from the commands
#   make lock    write constraints.txt anew from what is installed

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt

# pip's warnings are kept back and shown only when it fails.
define quietly
	log=$$(mktemp); if ! $(1) >"$$log" 2>&1; then cat "$$log" >&2; rm -f "$$log"; exit 1; fi; rm -f "$$log"
endef

.PHONY: help setup demo test test-hosts test-hosts-vm lint format types imports docs docs-check check bench bench-loadgen lock clean

help:
	@sed -n 's/^#   //p' Makefile

# --- set-up -----------------------------------------------------------------------------------------------------------------

$(BIN)/python:
	@found=; seen=; \
	for name in $${PYTHON:-} python3.13 python3.12 python3.11 python3; do \
	  version=$$("$$name" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue; \
	  if ! "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then seen="$$seen, $$name is $$version"; \
	  elif ! "$$name" -c 'import venv, ensurepip' 2>/dev/null; then seen="$$seen, $$name has no venv module"; \
	  else found=$$name; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "error: no Python 3.11 or newer with its venv module was found$${seen:+:$${seen#,}}" >&2; \
	  echo "hint: install one (Debian 12: apt-get install python3 python3-venv) or name it: make PYTHON=/path/to/python3.11 …" >&2; exit 2; \
	fi; \
	$(call quietly,"$$found" -m venv $(VENV))

$(RUNTIME): pyproject.toml constraints.txt autotuner/__init__.py | $(BIN)/python
	@start=$$SECONDS; echo "set-up: installing autotuner into $(VENV) …" >&2; \
	$(call quietly,$(PIP) --editable .); \
	touch $@; echo "set-up: $$((SECONDS - start)) s" >&2

$(DEV): $(RUNTIME)
	@start=$$SECONDS; echo "set-up: installing the tools for development …" >&2; \
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")' >$(VENV)/dev.txt; \
	$(call quietly,$(PIP) --requirement $(VENV)/dev.txt); \
	touch $@; echo "set-up: $$((SECONDS - start)) s" >&2

setup: $(DEV)

# --- demo -------------------------------------------------------------------------------------------------------------------

DEMO := --space search_spaces/sglang-kimi-k26.yaml --trials 9 --confirm-rounds 2 \
  --contexts 60,1024 --concurrency 1,16 --output-tokens 16 --window 0.3 --warmup 0.15 --recommendations demo/recommendations

demo: $(RUNTIME)
	@rm -rf demo/state; mkdir -p demo; start=$$SECONDS; \
	echo "+ autotuner --state-dir demo/state tune hosts/simulated-b300.yaml $(DEMO)" >&2; \
	$(BIN)/autotuner --state-dir demo/state tune hosts/simulated-b300.yaml $(DEMO); \
	echo "demo: $$((SECONDS - start)) s, set-up not counted" >&2; \
	find demo/recommendations -name '*.yaml' | sort

# --- checks -----------------------------------------------------------------------------------------------------------------

WORKERS ?= auto
# Files in their order: what takes long comes first, and the short unit tests fill what is left.
SPREAD := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
# Without booted hosts nothing of what reaches them over SSH is covered.
COVERED := $(if $(filter 1,$(AUTOTUNER_HOST_TESTS)),,--cov-fail-under=80)

test: $(DEV)
	@$(BIN)/python -m pytest $(SPREAD) --cov --cov-report=term:skip-covered $(COVERED) -ra $(PYTEST_ARGS)

CELLS ?= whole
KILLS ?= 30
MATRIX ?= build/matrix

test-hosts: $(DEV)
	@$(BIN)/python -m tests.hosts.matrix.run --cells $(CELLS) --kills $(KILLS) --out $(MATRIX)

VM ?= virtual
VM_MATRIX ?= build/matrix-vm

test-hosts-vm: $(DEV)
	@code=0; AUTOTUNER_HOST_TESTS=1 AUTOTUNER_VM_TESTS=1 AUTOTUNER_MATRIX_RESULTS=$(VM_MATRIX)/cells \
	  $(BIN)/python -m pytest tests/hosts/matrix/test_virtual.py -v --tb=short -p no:cacheprovider -k "$(VM)" || code=$$?; \
	$(BIN)/python -m tests.hosts.matrix.results $(VM_MATRIX)/cells; exit $$code

lint: $(DEV)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: $(DEV)
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

types: $(DEV)
	@$(BIN)/mypy

imports: $(DEV)
	@$(BIN)/lint-imports --no-logo

docs: $(DEV)
	@$(BIN)/python docs/render_cli.py

docs-check: $(DEV)
	@$(BIN)/python docs/render_cli.py --check

check: lint types imports docs-check test

bench: $(DEV)
	@echo "+ python -m benchmarks.overhead" >&2; $(BIN)/python -m benchmarks.overhead

BENCH ?=

bench-loadgen: $(DEV)
	@echo "+ python -m benchmarks.loadgen $(BENCH)" >&2; $(BIN)/python -m benchmarks.loadgen $(BENCH)

# --- housekeeping -----------------------------------------------------------------------------------------------------------

lock: $(DEV)
	@{ sed -n '/^#/p' constraints.txt; $(BIN)/python -m pip --disable-pip-version-check freeze --exclude-editable --exclude setuptools; } >$(VENV)/lock.txt
	@mv $(VENV)/lock.txt constraints.txt

clean:
	@rm -rf build dist htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
