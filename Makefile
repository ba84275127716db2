PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python -m

.PHONY: help install up test check lint types floors schemas docs fresh wheel kernels bench bench-peers tiny format clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/.installed: pyproject.toml
	@test -e .dev/stoker || { mkdir -p .dev && ln -sfn ../src .dev/stoker; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --upgrade pip
	$(RUN) pip install --quiet --editable '.[engine,dev]'
	@touch $@

install: $(BIN)/.installed  ## create .venv with everything

up: install  ## serve deployments/tiny.yaml
	$(BIN)/engine up deployments/tiny.yaml

test: install  ## every test that needs no GPU
	$(RUN) pytest -q

check: lint types floors fresh wheel  ## all that CI runs besides the tests

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install  ## rewrite files in the project's format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

types: install
	$(BIN)/mypy

floors: install
	$(BIN)/lint-imports

schemas: install  ## regenerate schemas/
	$(BIN)/engine schema --write

docs: install  ## regenerate docs/reference/
	$(RUN) tools.reference

fresh: install  ## fail when a generated file is stale
	$(BIN)/engine schema --check
	$(RUN) tools.reference --check

kernels: install  ## what every GPU kernel takes of one, compiled without one; ARGS=--full
	$(RUN) tools.kernels $(ARGS)

wheel: install  ## the wheel holds exactly what src/ holds
	$(RUN) tools.check_wheel

bench: install  ## Stoker against transformers, ratios of one run
	$(RUN) benchmarks.run

bench-peers: install  ## Stoker against vLLM, OpenVINO, llama.cpp and transformers; ARGS=--quick
	$(RUN) benchmarks.peers.run $(ARGS)

tiny: install  ## train builtin:tiny again
	$(RUN) tools.train_tiny

clean:
	rm -rf $(VENV) build dist
