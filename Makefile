# One word to run anything. Each word first makes .venv as requirements.lock says, if it is not there yet.

PYTHON ?= python3
BIN := .venv/bin
# uv is quicker; pip, which every Python brings, installs the same locked files.
UV := $(shell command -v uv 2>/dev/null)
ARGS ?=
# Processes that share the tests; a process of their own has what starts whole stacks.
TESTERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help up demo down test test-nodes check bench replay

help: ## list the words
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: .venv/.ready ## start everything on this machine; Ctrl-C drains and stops it
	@exec $(BIN)/sendloom up $(ARGS)

demo: .venv/.ready ## start everything, send real messages through it, check what became of them
	@$(BIN)/sendloom demo $(ARGS)

down: .venv/.ready ## stop what `make up` started; data stay
	@$(BIN)/sendloom down

test: .venv/.ready ## every test, on real servers started for it
	@$(BIN)/pytest -n $(TESTERS) $(ARGS)

test-nodes: .venv/.ready ## kill and hold nodes of a Cassandra of three, under load
	@$(BIN)/pytest -m cassandra_nodes $(ARGS)

check: .venv/.ready ## lint, format, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .
	$(BIN)/lint-imports

bench: .venv/.ready ## latency and kill benchmarks; prints figures and ratios
	$(BIN)/python -m benchmarks.latency
	$(BIN)/python -m benchmarks.kill

replay: .venv/.ready ## replay saved workflow histories against the workflows as they are
	@$(BIN)/pytest tests/replay $(ARGS)

.venv/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 …" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing what requirements.lock lists into .venv"
ifdef UV
	@$(UV) pip install -q --python $(BIN)/python --require-hashes -r requirements.lock
	@$(UV) pip install -q --python $(BIN)/python --no-deps -e .
else
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -e .
endif
	@touch $@
