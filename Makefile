# Every target makes what it needs, beginning with the environment in .venv.

SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help demo test test-full bench lint clean

ENVIRONMENT := .venv
BIN := $(ENVIRONMENT)/bin
STAMP := $(ENVIRONMENT)/.stamp

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(STAMP) ## compile and run a model, and show what happened
	@$(BIN)/graft demo

test: lint ## check style, types and layers, then run the tests
	$(BIN)/pytest -n auto

test-full: lint ## the same with the long suites
	GRAFT_FULL=1 $(BIN)/pytest -n auto -m ""

bench: $(STAMP) ## time Graft beside its peers
	@$(BIN)/python tools/scaling.py --write

lint: $(STAMP) ## check style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

clean: ## remove the environment and everything generated
	rm -rf $(ENVIRONMENT) build dist .coverage .hypothesis
	rm -rf .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last and holds the directory the environment belongs to. Without it the
# environment is unfinished; with another directory in it the checkout was moved or copied. Either
# way the environment is made anew. A stamp older than pyproject.toml only asks for another
# installation, before which it goes, so that an interrupted one counts as unfinished.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

$(STAMP): pyproject.toml
	@set -e; \
	if [ "$$(cat $@ 2>/dev/null)" != "$(CURDIR)" ]; then \
	    python=; \
	    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do \
	        if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	            python=$$candidate; \
	            break; \
	        fi; \
	    done; \
	    if [ -z "$$python" ]; then \
	        echo "Graft needs Python 3.11 or newer, and there is none on the PATH." >&2; \
	        exit 1; \
	    fi; \
	    echo "Creating $(ENVIRONMENT) with $$($$python --version) ..."; \
	    rm -rf $(ENVIRONMENT); \
	    $$python -m venv $(ENVIRONMENT); \
	fi; \
	rm -f $@; \
	echo "Installing Graft and its tools into $(ENVIRONMENT) ..."; \
	$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[test]'; \
	echo "$(CURDIR)" > $@
