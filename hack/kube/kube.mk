# A real Kubernetes for tests; see docs/test-cluster.md. Included by the Makefile, and usable alone with `make -f`.

CARGO ?= cargo
KUBE := $(CARGO) run --quiet --locked --bin xtask -- kube
TIER ?= node

.PHONY: cluster-up
cluster-up: ## Start a Kubernetes cluster and print how to reach it (TIER=node+gvisor+agent-sandbox for all of it)
	@$(KUBE) up --tier $(TIER)

.PHONY: cluster-down
cluster-down: ## End that cluster and remove everything of it
	@$(KUBE) down

.PHONY: test-cluster
test-cluster: ## Only the suites that need pods: build, start, try and end the test cluster
	@$(CARGO) run --quiet --locked --bin xtask -- test --suite cluster-tests --suite kubernetes
