# Needed beforehand: make, git and Python 3.11 or newer. Everything else goes into .venv.
# `make check` runs pyright by the node that is installed (18 or newer); without one, pyright's
# package loads a node of its own at the first run, into the user's cache.

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
COMPILE := CUSTOM_COMPILE_COMMAND="make pins" $(BIN)/pip-compile --quiet --strip-extras \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options
PEERS := $(patsubst benchmarks/contract/requirements/%.txt,.venv-peers/%/.stamp,\
	$(wildcard benchmarks/contract/requirements/*.txt))
SOURCES := $(wildcard agentgraph server/agentgraph_server tests examples)

.PHONY: help demo test soak soak-flows cuts contract check format tables bench contract-peers pins clean
.DEFAULT_GOAL := help

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.stamp  ## Hold a conversation with the example support desk, without a key or a network
	$(BIN)/python -m agentgraph_server.demo

test: .venv/.stamp .venv/.langgraph  ## Run the tests; with CI=true the random ones repeat exactly
	$(BIN)/pytest -q -n 2

soak: .venv/.stamp  ## Kill processes two thousand times, in sessions and while they act and undo
	$(BIN)/python -m tests.sessions.soak
	$(BIN)/python -m tests.guards.processes.soak

soak-flows: .venv/.stamp  ## Kill the processes of flows three hundred times, on SQLite and on Postgres
	$(BIN)/python -m tests.flow.soak

contract: .venv/.stamp  ## Play each cell of the resume contract; CELLS="thread, sqlite" plays some
	$(BIN)/python -m tests.contract

cuts: .venv/.stamp  ## Cut the streams of two hundred sessions at every event, on servers that are killed
	$(BIN)/python -m tests.server.cuts 100

check: .venv/.stamp  ## Check format, lint, types, import directions and public names
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/python -m tests.check_types
	$(BIN)/pytest -q tests/test_layers.py tests/test_public_names.py

format: .venv/.stamp  ## Format, and mend what can be mended
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .

tables: .venv/.stamp  ## Write the pages of docs/ that are made of the code
	$(BIN)/python -m tests.defaults

bench: .venv/.bench  ## Run the benchmarks, beside the peers they compare with
	$(BIN)/python -m benchmarks

contract-peers: .venv/.stamp $(PEERS)  ## Probe the resume contract on ours and on its peers, PEER=key on one
	$(BIN)/python -m benchmarks.contract $(PEER)

pins: .venv/.stamp  ## Resolve the pins in requirements/ again; UPGRADE=--upgrade takes newer ones
	$(COMPILE) $(UPGRADE) --extra auth --extra langchain --extra cost --extra cedar --extra notebook \
		-o requirements/dev.txt pyproject.toml requirements/dev.in
	$(COMPILE) $(UPGRADE) -o requirements/bench.txt requirements/bench.in
	$(COMPILE) $(UPGRADE) -o requirements/langgraph.txt pyproject.toml requirements/langgraph.in

clean:  ## Remove caches and built files, not .venv
	rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find $(wildcard agentgraph server tests benchmarks examples) -name __pycache__ -prune -exec rm -rf {} +

.venv/.stamp: pyproject.toml requirements/dev.txt
	@test -x $(BIN)/python || test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -r requirements/dev.txt
	$(PIP) --no-deps -e .
	@touch $@

# An environment of its own: `langgraph dev` wants older packages than dev.txt. Half a minute.
.venv/.langgraph: pyproject.toml requirements/langgraph.txt .venv/.stamp
	test -x .venv/langgraph/bin/python || $(BIN)/python -m venv .venv/langgraph
	$(PIP:$(BIN)%=.venv/langgraph/bin%) -r requirements/langgraph.txt
	$(PIP:$(BIN)%=.venv/langgraph/bin%) --no-deps -e .
	@touch $@

.venv/.bench: requirements/bench.txt .venv/.stamp
	$(PIP) -r requirements/bench.txt
	@touch $@

# Each peer has an environment of its own: they want different releases of the same packages.
.venv-peers/%/.stamp: benchmarks/contract/requirements/%.txt .venv/.stamp
	test -x .venv-peers/$*/bin/python || $(BIN)/python -m venv .venv-peers/$*
	$(PIP:$(BIN)%=.venv-peers/$*/bin%) -r $<
	@touch $@
