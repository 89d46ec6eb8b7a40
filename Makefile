# `make demo` and `make test` do all their own set-up in a fresh clone; `make help` lists the rest.

PYTHON ?= python3
VENV = .venv
PEERS = .venv-peers
INSTALLED = $(VENV)/.installed
PEERS_INSTALLED = $(PEERS)/.installed

# Scripts that measure a claim and write docs/results/*.json; peers.py is apart, for it needs the peers.
BENCHES = benchmarks/engine.py benchmarks/batch_norm.py benchmarks/auto.py benchmarks/moments_cost.py \
	benchmarks/prediction.py benchmarks/moments_accuracy.py benchmarks/moment_likelihoods.py benchmarks/kl.py benchmarks/sparse.py benchmarks/compile.py

# Tests that take about a minute of one core together, and that break first if something basic does.
FAST = tests/test_architecture.py tests/test_layout.py tests/test_citations.py tests/test_documentation.py \
	tests/test__calls.py tests/test__catalogue.py tests/test_bayesian.py tests/test_objective.py tests/test_storage.py \
	tests/test_version_0_1.py tests/likelihood tests/metrics tests/priors \
	tests/train/schedules tests/propagate/test_propagation.py

.PHONY: help demo docs test test-fast check format test-slow test-crash test-workers test-elastic matrix bench bench-peers clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' Makefile

demo: $(INSTALLED) ## compare six methods on generated blood cells, and write out/cells/report.html
	@$(VENV)/bin/leanbayes compare --data cells --out out/cells

test: check ## lint, format, types, then the tests
	@OMP_NUM_THREADS=1 $(VENV)/bin/pytest -n 2 --dist worksteal

test-fast: $(INSTALLED) ## an answer within a minute: the core of the library, the layout and the pages
	@OMP_NUM_THREADS=1 $(VENV)/bin/pytest -n 2 --dist worksteal $(FAST)

check: $(INSTALLED) ## lint, format and types only
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

format: $(INSTALLED) ## rewrite the files as ruff wants them
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

test-slow: $(INSTALLED) ## the long scientific runs
	@$(VENV)/bin/pytest -m slow

test-crash: $(INSTALLED) ## 110 kills, and two failures at each write of fit and of the commands; the last line has the counts
	@$(VENV)/bin/python -m tests.crash --kills 110 --seed 17

test-workers: $(INSTALLED) ## kill, stop and starve workers that share a queue of jobs; each line has the counts of a scenario
	@$(VENV)/bin/python -m tests.workers

test-elastic: $(INSTALLED) ## kill ten ranks of a sharded training that torchrun restarts; the last line has the counts
	@$(VENV)/bin/python -m tests.sharded --kills 10 --seed 17

matrix: $(INSTALLED) ## run the tests of other tools, and write docs/integrations/matrix.md
	@OMP_NUM_THREADS=1 $(VENV)/bin/python -m tests.integrations.matrix

docs: $(INSTALLED) ## build the documentation site into site/; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
	@echo "open site/index.html, or run: $(VENV)/bin/python -m http.server -d site"

bench: $(INSTALLED) ## measure, and write docs/results
	@for bench in $(BENCHES); do $(VENV)/bin/python $$bench || exit 1; done

bench-peers: $(PEERS_INSTALLED) ## the same work in LeanBayes and its peers, in an environment of their own
	@$(PEERS)/bin/python benchmarks/peers.py

clean: ## remove what make built
	@rm -rf $(VENV) $(PEERS) build dist out site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# laplace-torch goes in without dependencies: it asks for torchvision, which it does not import.
$(INSTALLED): pyproject.toml papers/pyproject.toml constraints.txt tests/laplace.txt
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(VENV)/bin/pip install -q -c constraints.txt -e '.[dev]' -e papers
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(VENV)/bin/pip install -q --no-deps -r tests/laplace.txt
	@$(VENV)/bin/python examples/browser/get_runtime.py $(VENV)/onnxruntime-web || echo "without onnxruntime-web, a test in the browser is skipped"
	@touch $@

# The peers go in without dependencies: most of them ask for torchvision; see benchmarks/peers.txt.
$(PEERS_INSTALLED): pyproject.toml constraints.txt benchmarks/peers.txt tests/laplace.txt
	@echo "setting up $(PEERS)"
	@$(PYTHON) -m venv $(PEERS)
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(PEERS)/bin/pip install -q -c constraints.txt -e '.[fast,onnx]'
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(PEERS)/bin/pip install -q --no-deps -r benchmarks/peers.txt
	@touch $@
