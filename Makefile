# Requires Python >= 3.11, make and a package registry that pip reaches. `make deps` installs the system
# packages that only tests use. No other target changes anything outside the checkout.

VENV ?= .venv
DATA_DIR ?= $(CURDIR)/data
ADMIN_LISTEN ?= 127.0.0.1:8081
JOBS_ADMIN_LISTEN ?= 127.0.0.1:8092

bin := $(VENV)/bin
release := PYTHON='$(abspath $(VENV)/bin)/python' .ci/release dist
definition := setup.cfg pyproject.toml
compile := UV_CUSTOM_COMPILE_COMMAND='make lock' $(bin)/uv pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-find-links

# The checkout precedes the editable install: new modules and the plugin are found at once.
export PYTHONPATH := $(CURDIR)
# `make deps` compiles programs into the first two; Debian has administration tools in the others.
export PATH := $(abspath $(bin)):$(PATH):$(HOME)/.cargo/bin:$(HOME)/go/bin:/usr/sbin:/sbin

# Some container images set it; then each process of the tests would compile all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run jobs boot check fast test simulate boot-test container-test load-test package-test systemd-test cluster-test soak lint format docs site manifests bench bench-full lock release packages chart toolkit deps clean
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

run: $(VENV)/installed ## serve a sample image with the embedded stand-in for assisted-service
	mkdir -p '$(DATA_DIR)'
	DATA_DIR='$(DATA_DIR)' ADMIN_LISTEN='$(ADMIN_LISTEN)' exec $(bin)/image-service serve --standalone

jobs: $(VENV)/jobs ## compose images as jobs, with engine and worker as child processes: docs/jobs.md
	mkdir -p '$(DATA_DIR)/jobs'
	DATA_DIR='$(DATA_DIR)/jobs' ADMIN_LISTEN='$(JOBS_ADMIN_LISTEN)' exec $(bin)/image-service jobs

boot: $(VENV)/tools ## boot a virtual machine from a customized ISO of the service, or by ARGS=ipxe; needs qemu, xorriso and apt
	$(bin)/python -m tests.acceptance.boot_once $(ARGS)

# The loop of a contributor: at most three minutes on two cores, also without any cache.
check: $(VENV)/tools ## lint, check types and run the fast tests of what does no I/O
	$(MAKE) --jobs=2 --output-sync lint fast

# The parts of the core and what is like them; what takes longer in them is marked `slow`.
fast: $(VENV)/tools
	$(bin)/python -m pytest -n 2 --dist loadscope -m 'not slow' $(ARGS) tests/core tests/settings \
		tests/server/http tests/common/command_line tests/common/concurrency tests/test_architecture.py

# Four processes, also on two cores, because many tests wait for others most of the time. They take whole modules, so
# that each module's fixtures are set up once, in the order of tests/conftest.py.
test: $(VENV)/tools ## run all tests but those of boot-test to cluster-test; ARGS="-k ranges -x" goes to pytest; -n0: in one process
	$(bin)/python -m pytest -n 4 --dist loadscope --no-loadscope-reorder $(ARGS)

simulate: $(VENV)/tools ## carry out the simulated history of SEED, or of ARGS="--histories 100" from it on
	$(bin)/python -m tests.simulation $(SEED) $(ARGS)

boot-test: $(VENV)/tools ## boot virtual machines from customized ISOs and disks, over HTTP and by iPXE; needs qemu
	$(bin)/python -m pytest -n 2 -m boot $(ARGS) tests/acceptance tests/toolkit

container-test: $(VENV)/tools ## build the container image, and run it
	$(bin)/python -m pytest -n 0 -m container $(ARGS) tests/packaging/test_container.py

load-test: $(VENV)/tools ## put the service, jobs and load test under load, with small numbers
	$(bin)/python -m pytest -n 0 -m load $(ARGS) tests/acceptance tests/bench tests/jobs

package-test: $(VENV)/tools .cache/site/installed ## build and install the wheels, the archive and the site
	$(bin)/python -m pytest -n 2 -m package $(ARGS) tests/packaging

# As root: a container runs systemd as its PID 1.
systemd-test: $(VENV)/tools ## run the units of all roles under systemd, in a container; needs root
	$(bin)/python -m pytest -n 0 -m systemd $(ARGS) tests/packaging/test_systemd.py

# As root: nodes need namespaces and cgroups. The first run compiles Kubernetes into .cache.
cluster-test: $(VENV)/tools ## run manifests and chart in a Kubernetes of two nodes; needs root, Go, containerd and etcd
	$(bin)/python -m pytest -n 0 -m cluster -s $(ARGS) tests/packaging/test_cluster.py

# One at a time: each takes the whole machine.
soak: $(VENV)/tools $(VENV)/lock ## run the tests that take minutes: large numbers, random examples, and boot-test to cluster-test
	$(bin)/python -m pytest -n 0 -m 'soak or boot or container or load or package or systemd or cluster or hypothesis' --hypothesis-profile=search \
		--timeout 3600 $(ARGS)

lint: $(VENV)/tools ## check with ruff, its formatter and mypy
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/mypy

format: $(VENV)/tools ## apply ruff's fixes and formatter
	$(bin)/ruff check --fix-only .
	$(bin)/ruff format .

docs: $(VENV)/tools ## generate docs/configuration.md, docs/metrics.md and man/ from the code, docs/performance.md from bench/results
	$(bin)/python -m image_service.cli.settings_reference >docs/configuration.md
	$(bin)/python -m image_service.server.observability.metrics >docs/metrics.md
	$(bin)/python -m image_service.cli.man_pages man
	$(bin)/python -m bench.report >docs/performance.md.new
	mv docs/performance.md.new docs/performance.md

site: .cache/site/installed ## build the site of the documents, dist/site/index.html
	.cache/site/bin/python -m sphinx -q -W --keep-going -E -d .cache/site/trees docs dist/site

# The token is that of a Secret. An update leaves the number of replicas to the autoscaler. Versions of helm differ in
# blank lines.
manifest = --set secrets.admin=image-service-admin --is-upgrade --kube-version 1.33.4
manifests: ## render conf/kubernetes/ from the Helm chart; needs helm
	for size in one-replica three-replicas; do \
		helm template image-service conf/helm/image-service --values conf/helm/$$size.yaml $(manifest) \
			>conf/kubernetes/$$size.yaml || exit; \
		sed -i '/^ *$$/d' conf/kubernetes/$$size.yaml; \
	done

bench: $(VENV)/tools ## run every scenario of the benchmark with small numbers; ARGS=--help lists the options
	$(bin)/python -m bench $(ARGS)

# A run that was ended begins with the first scenario that it had not finished.
bench-full: $(VENV)/tools ## measure the figures of docs/performance.md, which `make docs` puts there
	$(bin)/python -m bench --full --results bench/results $(ARGS)

# uv keeps the versions that are locked; ARGS=--upgrade takes the newest.
lock: $(VENV)/lock ## pin the container's dependencies, with hashes; ARGS=--upgrade takes the newest
	$(compile) --extra pkcs11 --extra postgresql --extra s3 setup.cfg --output-file requirements.lock $(ARGS)
	$(compile) --extra jobs --extra pkcs11 --extra postgresql --extra s3 setup.cfg --output-file requirements-jobs.lock $(ARGS)
	sed -n '/^install_requires/,/^$$/s/^    //p' .ci/toolkit/setup.cfg | \
		$(compile) --constraint requirements-jobs.lock - --output-file requirements-toolkit.lock $(ARGS)
	$(compile) --group release --output-file requirements-build.lock $(ARGS)

# With VERSION: `make check`, then a commit and a tag of this version, from which everything is built.
release: $(VENV)/lock $(VENV)/tools ## build all of a release in dist/; VERSION=1.2.3: commit and tag it first; nothing is pushed
	@command -v nfpm >/dev/null || { echo 'nfpm is not here: make deps ARGS=soak' >&2; exit 1; }
	@test -r "$${SIGNING_KEY_FILE:-/dev/null}" || { echo "cannot read SIGNING_KEY_FILE=$$SIGNING_KEY_FILE" >&2; exit 1; }
	for lock in $(wildcard requirements*.lock); do .ci/audit "$$lock" || exit; done
	$(if $(VERSION),$(MAKE) check)
	$(if $(VERSION),.ci/set-version '$(VERSION)')
	$(release)

packages: $(VENV)/lock ## build dist/SYSTEM/: packages of Debian and RPM, and the wheels; needs nfpm
	$(release) packages

chart: $(VENV)/lock ## build the Helm chart in dist/, for a web server and a registry, and the wheels
	$(release) chart

toolkit: $(VENV)/tools ## build dist/image_toolkit-*.whl: the imaging toolkit alone, without Twisted
	.ci/toolkit/build dist

deps: ## install the clients that tests and bench use (apt or dnf, cargo; needs root); ARGS=soak: those of soak too
	.ci/deps $(ARGS)

clean: ## remove all generated files except the data
	rm -rf '$(VENV)' build dist .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/created: .ci/venv .ci/common.sh
	.ci/venv '$(VENV)'
	touch $@

# Strict mode, because a default editable install loses the twistd plugin.
$(VENV)/installed: $(VENV)/created $(definition)
	$(bin)/python -m pip install -qq --editable . --config-settings editable_mode=strict
	touch $@

# Only what is missing: a second install of the project would take its modules from a running `make run`.
$(VENV)/jobs: $(VENV)/installed
	$(bin)/python -m pip install -qq 'image-service[jobs]'
	touch $@

$(VENV)/lock: $(VENV)/created $(definition)
	$(bin)/python -m pip install -qq --group lock
	touch $@

.cache/site/installed: .ci/venv .ci/common.sh $(definition)
	.ci/venv .cache/site
	.cache/site/bin/python -m pip install -qq . --group site
	touch $@

$(VENV)/tools: $(VENV)/installed
	$(bin)/python -m pip install -qq --group test --group lint
	touch $@
