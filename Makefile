PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python -m
PIP := $(RUN) pip --disable-pip-version-check
COMMA := ,
JOBS ?= 2
KIND ?= cpu

# The tests start hundreds of Python processes: each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install up test test-slow check lint types floors words schemas docs classes fresh wheel release image site browser parity kernels bench bench-peers attack fuzz fuzz-headers clients writers tiny tiny-drafts format clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# $(call stage,name,command): runs a command under its name, and prints the seconds that it took
define stage
	@echo "==> $(1)"; began=$$(date +%s); $(2) && echo "==> $(1): done in $$(( $$(date +%s) - began )) s"
endef

$(BIN)/.engine: pyproject.toml  # what runs a deployment, without the developers' tools
	@test -e .dev/stoker || { mkdir -p .dev && ln -sfn ../src .dev/stoker; }
	$(call stage,virtual environment in $(VENV),$(PYTHON) -m venv $(VENV))
	$(call stage,packages (torch is the largest: a minute or more),\
	  STOKER_BUILD_KERNELS=none $(PIP) install --editable '.[engine]')
	$(call stage,C++ kernels for this machine$(COMMA) those that bfloat16 needs,$(RUN) stoker.engine.kernels.cpu)
	@touch $@

$(BIN)/.installed: $(BIN)/.engine $(wildcard packages/*/pyproject.toml)
	$(call stage,packages for developers,\
	  STOKER_BUILD_KERNELS=none $(PIP) install --editable '.[engine$(COMMA)dev$(COMMA)docs]')
	$(call stage,packages beside the engine,\
	  $(PIP) install --no-build-isolation --no-deps $(addprefix --editable ,$(wildcard packages/*)))
	$(call stage,all C++ kernels for this machine,$(RUN) stoker.engine.kernels.cpu --all)
	@touch $@

install: $(BIN)/.installed  ## create .venv with everything

up: $(BIN)/.engine  ## install what a deployment needs, and serve deployments/tiny.yaml
	$(BIN)/engine up deployments/tiny.yaml

test: install  ## the tests that need no GPU; ARGS='-k name'
	$(RUN) pytest -q -n $(JOBS) --dist worksteal --durations 15 --durations-min 1 $(ARGS)

test-slow: install  ## mutation tests, exhaustive parametrisations, long simulations
	$(RUN) pytest -q -n $(JOBS) --dist worksteal --durations 15 --durations-min 5 -m slow --timeout 1200 $(ARGS)

check: lint types floors words fresh wheel site  ## all that CI runs besides the tests

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/hadolint docker/*.Dockerfile

format: install  ## rewrite files in the project's format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

types: install
	$(BIN)/mypy

floors: install
	$(BIN)/lint-imports

words: install  ## words that have a standard term instead
	$(RUN) tools.check_words

schemas: install  ## regenerate schemas/
	$(BIN)/engine schema --write

docs: install  ## regenerate docs/reference/ and the output in docs/guide/tutorial.md
	$(RUN) tools.reference
	$(RUN) tools.monitoring
	$(RUN) tools.model_sizes
	$(RUN) tools.site.tutorial

classes: install  ## probe each class of the installed transformers, ten minutes; then make docs
	$(RUN) tools.transformers_families

fresh: install  ## fail when a generated file is stale
	$(BIN)/engine schema --check
	$(RUN) tools.reference --check
	$(RUN) tools.monitoring --check
	$(RUN) tools.site.tutorial --check

image:  ## build the container image stoker:VERSION; KIND=cuda for GPUs, ARGS=--build-arg ... for the builder
	$(PYTHON) -m tools.build_image $(KIND) $(ARGS)

site: install  ## build the documentation into build/site; broken links fail
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict
	$(RUN) tools.site.check

browser: install  ## headless Chromium for the tests of the web page: needs Debian's packages, and root
	$(PIP) install 'playwright>=1.50'
	apt-get install --yes --no-install-recommends chromium-headless-shell

parity: install  ## compare every family of models with transformers, and write docs/guide/parity.md
	$(RUN) tools.parity $(ARGS)

kernels: install  ## what every GPU kernel takes of one, compiled without one; ARGS=--full
	$(RUN) tools.kernels $(ARGS)

wheel: install  ## check that the wheel contains src/ and the compiled kernels, and nothing else
	$(RUN) tools.check_wheel

release: install  ## build the release wheel in dist/: kernels of all levels, manylinux tag
	$(RUN) tools.build_wheel

bench: install  ## Stoker against transformers, ratios of one run
	$(RUN) benchmarks.run

writers: install  ## quantised checkpoints for tests, each made by its own library; ARGS="gptqmodel torchao"
	$(RUN) tools.writers $(ARGS)

bench-peers: install  ## Stoker against vLLM, OpenVINO, llama.cpp and transformers; ARGS=--quick
	$(RUN) benchmarks.peers.run $(ARGS)

attack: install  ## attack a server of builtin:tiny in many ways, half an hour; ARGS='sockets --seed 2'
	$(RUN) benchmarks.attack $(ARGS)

fuzz-headers: install  ## read 100,000 damaged headers of weight files; ARGS='--inputs 5000'
	$(RUN) tools.fuzz_headers $(ARGS)

fuzz: install  ## send 100,000 generated requests to `engine up`; ARGS='--requests 5000'
	$(RUN) tools.fuzz_api $(ARGS)

clients: install  ## try OpenAI's clients against `engine up`, and write docs/guide/server/clients.md; ARGS='--only litellm'
	$(RUN) tools.clients $(ARGS)

tiny: install  ## train builtin:tiny again
	$(RUN) tools.train_tiny

tiny-drafts: install  ## train what drafts for builtin:tiny again
	$(RUN) tools.train_tiny_drafts

clean:
	rm -rf $(VENV) build dist
