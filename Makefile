# Needs python3 (3.11 or newer, with venv), make and a C compiler. Everything else is installed into VENV and ENGINE_VENV.
VENV ?= .venv
ENGINE_VENV ?= .venv-engine
PYTHON ?= python3
PORT ?=
MODEL ?=
DATA ?=
ARGS ?=

PACKAGES := service programs router tests scripts
RUN := $(VENV)/bin/python -m
A_PROCESS_A_CORE := $(RUN) pytest -n auto
NONE_CHOSEN := 5
export ANTIPHON_ENGINE_PYTHON = $(abspath $(ENGINE_VENV))/bin/python

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help up install engine test test-fast lint types format bench-front bench-router bench-prompt bench-placement soak lock clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo "  variables:        PORT= MODEL= DATA= (up)   ARGS= (pytest, bench)   VENV= ENGINE_VENV= PYTHON="

up: install engine  ## Install what is missing, then serve: session store, engine and front
	@exec $(VENV)/bin/antiphon up $(if $(PORT),--port '$(PORT)') $(if $(MODEL),--model '$(MODEL)') $(if $(DATA),--data-dir '$(DATA)')

install:  ## Make VENV: what we run on and what we develop with
	@$(PYTHON) scripts/environment.py $(VENV) requirements-dev.lock --project .

engine:  ## Make ENGINE_VENV: SGLang (11 GB)
	@$(PYTHON) scripts/environment.py $(ENGINE_VENV) requirements-engine.lock --heavy

test: install engine lint types  ## Lint, types and all tests, those on a real engine included
	$(A_PROCESS_A_CORE) -m "not engine" $(ARGS) || [ $$? -eq $(NONE_CHOSEN) ]
	$(RUN) pytest -m engine $(ARGS) || [ $$? -eq $(NONE_CHOSEN) ]

test-fast: install  ## Unit tests alone: no engine
	$(A_PROCESS_A_CORE) -m "not engine and not slow" $(ARGS)

lint: install  ## Check style
	$(RUN) ruff check
	$(RUN) ruff format --check

types: install  ## Check types
	$(RUN) mypy $(PACKAGES)

format: install  ## Rewrite to style
	$(RUN) ruff check --fix
	$(RUN) ruff format

bench-front: install  ## Measure the front against the fake engine
	@exec $(RUN) tests.bench.front $(ARGS)

bench-router: install  ## Measure routers over fake replicas (ARGS="--replicas 8 -- --smg PATH")
	@exec $(RUN) tests.bench.router $(ARGS)

bench-prompt: install  ## Measure what a prompt costs (ARGS="--model DIR")
	@exec $(RUN) tests.bench.prompt $(ARGS)

soak: install  ## Kill, add, drain and break engines under chats that check every answer (ARGS="--seconds 600")
	@exec $(RUN) tests.bench.soak $(ARGS)

bench-placement: install  ## Measure what placing a prompt costs, over full caches
	@exec $(RUN) tests.bench.placement $(ARGS)

# pip's own constraints, where it has any, bind the locks too: what is locked must be installable where it was locked.
lock: install  ## Compile the locks from pyproject.toml again (ARGS=--upgrade for the newest)
	@export UV_CONSTRAINT="$$($(RUN) pip config list | sed -n "s/^\(global\|install\|:env:\)\.constraint='\(.*\)'$$/\2/p")"; set -e; \
	compile() { $(RUN) uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet $(ARGS) "$$@"; }; \
	compile pyproject.toml --group dev --output-file requirements-dev.lock; \
	$(VENV)/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["engine"], sep="\n")' \
		| compile - --output-file requirements-engine.lock; \
	sed -i '/^ *# *-c /d' requirements-dev.lock requirements-engine.lock

clean:  ## Remove the environments and every cache in the checkout
	rm -rf $(VENV) $(ENGINE_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
