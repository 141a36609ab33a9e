PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo lint spelling format types pytest test test-gpu sanitize test-web results docs dist bench clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-8s %s\n", $$1, $$2 }'

setup: $(STAMP)  ## create .venv and install beamtree with its development tools (PYTHON=python3.12 to choose)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "beamtree needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try: make setup PYTHON=python3.11" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	@touch $@

demo: setup  ## train a small model in minutes, test it on longer inputs than it was trained on, look at a tree
	$(BIN)/beamtree train listops-tiny --out runs/demo
	@echo; echo "On expressions like those in training, and on longer ones:"
	$(BIN)/beamtree evaluate runs/demo
	@echo; echo "The tree of an expression:"
	$(BIN)/beamtree parse runs/demo "[MAX 2 9 [MIN 4 7 ] 0 ]" --ascii --top 1

lint: setup spelling  ## check style, formatting and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

spelling: setup  ## check spelling
	$(BIN)/codespell .ci .github docs examples src tests results/*.py *.md *.cff *.toml *.yml Makefile

format: setup  ## repair what can be repaired of both
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup  ## check types
	$(BIN)/mypy

# One thread per worker: the workers already fill the cores. Bytecode is cached even where the environment forbids it:
# tests start many processes, and each would compile the package again.
pytest: setup  ## run the tests alone, in parallel (ARGS="-k topk" to choose)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

test: lint types pytest  ## everything a change must pass: lint, types, tests

# In one process: several would share the GPU and its memory.
test-gpu: setup  ## run all tests of GPU code, on a machine with a CUDA device
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "gpu or kernels" $(ARGS)

TOOL ?= memcheck
SANITIZE := compute-sanitizer --tool $(TOOL) --report-api-errors no --error-exitcode 1 $(BIN)/python tests/gpu/sanitize.py
sanitize: setup  ## run every kernel under compute-sanitizer (TOOL=racecheck, initcheck or synccheck to choose)
	PYTORCH_NO_CUDA_MEMORY_CACHING=1 $(SANITIZE)
	$(SANITIZE)

test-web: setup  ## test the page in a real browser, which this installs into .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt playwright
	browser=$$($(BIN)/python tests/web/browser.py) && \
	  OMP_NUM_THREADS=1 BEAMTREE_BROWSER="$$browser" $(BIN)/python -m pytest -m web tests/web $(ARGS)

results: setup  ## write the tables and plots of docs/results.md from the files in results/
	$(BIN)/python results/write_tables.py
	$(BIN)/python results/draw_plots.py

docs: setup  ## build the site into build/site; a warning or a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

dist: setup  ## build sdist and wheel into dist, and try the wheel in a fresh environment
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/check_wheel.py dist

bench: setup  ## measure the engines beside the reference (ARGS="..." are passed on)
	$(BIN)/beamtree bench $(ARGS)

clean:  ## remove caches and build outputs; .venv stays
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -type d \( -name __pycache__ -o -name '*.egg-info' \) -prune -exec rm -rf {} +
