# Needs Python >= 3.11, make and a package registry that pip reaches. `make deps` adds the system's
# packages that only tests drive. Nothing outside the checkout is touched, but by `make deps`.

VENV ?= .venv
DATA_DIR ?= $(CURDIR)/data

bin := $(VENV)/bin
definition := setup.cfg pyproject.toml

# The checkout comes before what is installed from it: a new module, and the plugin, are found at once.
export PYTHONPATH := $(CURDIR)
# Where cargo puts coreos-installer, and Debian the tools of root.
export PATH := $(abspath $(bin)):$(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin

.PHONY: help run test lint format docs bench deps clean
.DELETE_ON_ERROR:

help: ## this list
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

run: $(VENV)/installed ## a sample image, served with the embedded stand-in for assisted-service
	mkdir -p '$(DATA_DIR)'
	DATA_DIR='$(DATA_DIR)' exec $(bin)/image-service serve --standalone

# In two processes, module by module: what one sets up is set up once. The longest are in acceptance, the first.
test: $(VENV)/tools ## every test; ARGS="-k ranges -x" goes to pytest; -n0: in one process
	$(bin)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder $(ARGS)

lint: $(VENV)/tools ## what has to be clean: ruff, its formatter, mypy
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/mypy

format: $(VENV)/tools ## what ruff can put right by itself
	$(bin)/ruff check --fix-only .
	$(bin)/ruff format .

docs: $(VENV)/installed ## docs/configuration.md and docs/metrics.md, from the code
	$(bin)/python -m image_service.settings.reference >docs/configuration.md
	$(bin)/python -m image_service.observability.metrics >docs/metrics.md

bench: $(VENV)/tools ## this service beside nginx; ARGS=--help goes to it
	$(bin)/python -m bench $(ARGS)

deps: ## the clients that acceptance tests and bench drive (apt or dnf, cargo; asks for root)
	.ci/deps

clean: ## what make made; not the data
	rm -rf '$(VENV)' build .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/created: .ci/venv .ci/common.sh
	.ci/venv '$(VENV)'
	touch $@

# Strict, because a default editable install loses the twistd plugin.
$(VENV)/installed: $(VENV)/created $(definition)
	$(bin)/python -m pip install -qq --editable . --config-settings editable_mode=strict
	touch $@

$(VENV)/tools: $(VENV)/installed
	$(bin)/python -m pip install -qq --group test --group lint
	touch $@
