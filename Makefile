# Everything a person runs. The work is done by `cargo xtask`; these are its short names.

.DEFAULT_GOAL := help
CARGO ?= cargo
# By the name of the program and not of its package: so its libraries have the features of the whole workspace, and are shared.
XTASK := $(CARGO) run --quiet --locked --bin xtask --

# A checkout that is built once gains nothing from incremental compilation, and pays for it.
ifdef CI
export CARGO_INCREMENTAL := 0
endif

.PHONY: help
help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# A linker is needed to build the tool that installs one.
.PHONY: linker
linker:
	@command -v cc >/dev/null 2>&1 || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qqy --no-install-recommends build-essential; \
		else \
			echo "error: no C compiler to link with" >&2; \
			echo "hint: sudo apt-get install build-essential" >&2; \
			exit 1; \
		fi; \
	}

# In a fresh clone: what an earlier run on this machine compiled of the same libraries.
.PHONY: libraries
libraries:
	@hack/library-cache restore

# Not quiet: the first time it takes a minute or more.
.PHONY: tooling
tooling: linker libraries
	@$(CARGO) build --locked --bin xtask

.PHONY: setup
setup: tooling ## Install the packages that building and testing need
	@$(XTASK) setup

.PHONY: build
build: linker ## Build everything
	$(CARGO) build --workspace --locked

.PHONY: demo
demo: linker libraries ## See an agent at work, and a hostile one stopped
	@$(CARGO) build --locked --bin sympozium
	@$(CARGO) run --quiet --locked --bin sympozium -- demo

.PHONY: quick
quick: tooling ## After a small change: format, clippy of what changed, unit tests; no cluster
	@$(XTASK) quick

.PHONY: test
test: tooling ## Run every check and test, with samples of the large matrices
	@$(XTASK) test; passed=$$?; hack/library-cache save; exit $$passed

.PHONY: test-full
test-full: tooling ## The same with the whole matrices
	@$(XTASK) test --full

.PHONY: test-busy
test-busy: tooling ## The timing-sensitive tests with every core busy, three times in a row
	@$(XTASK) test --busy

.PHONY: bench
bench: setup ## Measure against the targets (SUITE=name for one suite)
	@$(XTASK) bench $(if $(SUITE),--suite $(SUITE))

.PHONY: fuzz
fuzz: setup ## Fuzz each target for two or ten minutes (SECONDS=n, TARGET=name, INPUT=file)
	@$(XTASK) fuzz $(if $(SECONDS),--seconds $(SECONDS)) $(if $(TARGET),--target $(TARGET)) $(if $(INPUT),--input $(INPUT))

.PHONY: fmt
fmt: ## Format the code
	$(CARGO) fmt --all

.PHONY: clippy
clippy: linker ## Lint the code
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

.PHONY: clean
clean: ## Remove what was built
	$(CARGO) clean

.PHONY: clean-cache
clean-cache: tooling ## Remove what was built outside the tree (the parts of the test cluster, compiled libraries)
	@$(XTASK) kube clean-cache
	@hack/library-cache clear

# The targets of the test cluster, where the checkout has them.
-include hack/kube/kube.mk
