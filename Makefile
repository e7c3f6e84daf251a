# Every target makes what it needs, beginning with the environment in .venv; the peers that Graft is
# timed against are large and have one of their own, .venv-bench.

SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help demo test test-full bench loc lint clean

ENVIRONMENT := .venv
BIN := $(ENVIRONMENT)/bin
STAMP := $(ENVIRONMENT)/.stamp
BENCH := .venv-bench
BENCH_STAMP := $(BENCH)/.stamp
ONLY :=

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(STAMP) ## compile and run a model, and show what happened
	@$(BIN)/graft demo

# Tests start many processes, each of which would parse the package anew without bytecode.
test test-full: export PYTHONDONTWRITEBYTECODE :=

test: lint ## check style, types and layers, then run the tests
	$(BIN)/pytest -n auto

test-full: lint ## the same with the long suites
	GRAFT_FULL=1 $(BIN)/pytest -n auto -m ""

bench: $(BENCH_STAMP) ## time Graft beside its peers, and write what comes out into the pages
	$(BENCH)/bin/python -m benchmarks $(ONLY) --write

loc: $(STAMP) ## count the lines of code of packages and backends
	@$(BIN)/python -m benchmarks lines-of-code

lint: $(STAMP) ## check style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

clean: ## remove the environment and everything generated
	rm -rf $(ENVIRONMENT) $(BENCH) build dist .coverage .hypothesis
	rm -rf .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written last and holds the directory the environment belongs to. Without it the
# environment is unfinished; with another directory in it the checkout was moved or copied. Either
# way the environment is made anew. A stamp older than pyproject.toml only asks for another
# installation, before which it goes, so that an interrupted one counts as unfinished.
define belongs_here
ifneq ($$(shell cat $(1) 2>/dev/null),$$(CURDIR))
.PHONY: $(1)
endif
endef
$(foreach stamp,$(STAMP) $(BENCH_STAMP),$(eval $(call belongs_here,$(stamp))))

# Makes the environment of the stamp $@ with the extra $(1); $(2) are packages that are installed
# without what they ask for.
define environment
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
	    echo "Creating $(@D) with $$($$python --version) ..."; \
	    rm -rf $(@D); \
	    $$python -m venv $(@D); \
	fi; \
	rm -f $@; \
	echo "Installing Graft with its extra '$(1)' into $(@D) ..."; \
	pip="$(@D)/bin/python -m pip install -qq --disable-pip-version-check"; \
	$$pip --editable '.[$(1)]'; \
	$(if $(2),$$pip --no-deps $(2);) \
	echo "$(CURDIR)" > $@
endef

# tosa-tools pins older releases of NumPy and others, which its reference model does not need.
$(STAMP): pyproject.toml
	$(call environment,test,tosa-tools==2026.8.0)

# onnx2torch asks for torchvision, which it uses for two operators of detectors alone, and whose
# builds do not go with every build of PyTorch.
$(BENCH_STAMP): pyproject.toml
	$(call environment,bench,onnx2torch==1.5.15)
