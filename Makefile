# Everything a contributor runs. `make` alone lists the targets.
VENV ?= .venv
PYTHON ?= python3
CONSTRAINTS ?= constraints/newest.txt
WORKERS ?= 2
THREADS ?= 1
BIN := $(VENV)/bin
# loadgroup: tests that share processes (the Hub's) go to one worker.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-ci test-slow check format bench bench-compare build clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 20

venv: $(VENV)/.installed  ## create the environment with all that demo and tests need

# The stamp is written last, so that an interrupted installation is taken up again.
$(VENV)/.installed: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e '.[dev,convert]'
	touch $@

demo: venv  ## the main job on what is installed: fill masks, plot kernels, save, reload
	$(BIN)/convbert-composite demo --output build/demo

test: venv  ## the fast tests
	$(PYTEST)

test-ci: venv  ## the slow tests that CI runs as well
	$(PYTEST) -m ci

test-slow: venv  ## all slow tests, then the fast ones with the oldest supported transformers
	$(PYTEST) -m slow
	$(MAKE) test VENV=$(VENV)-floor CONSTRAINTS=constraints/floor.txt

# mypy sees the mapped folders (configuration, ...) only where they are installed: in a tree of links.
check: venv  ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	rm -rf build/typed && mkdir -p build/typed/modeling_convbert_composite
	ln -s $(CURDIR)/modeling_convbert_composite/* build/typed/modeling_convbert_composite/
	ln -s $(addprefix $(CURDIR)/,configuration conversion model_cards) build/typed/modeling_convbert_composite/
	cd build/typed && $(abspath $(BIN))/mypy --config-file $(CURDIR)/pyproject.toml -p modeling_convbert_composite

format: venv  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# `make bench QUICK=1` takes minutes, the whole an hour; `make bench BENCH='--device cuda'` runs on a GPU. One thread, as
# the stored baseline; `THREADS=2` measures wall time on two.
bench: venv  ## time and memory beside plain attention and peers, in build/benchmarks
	$(BIN)/python -m benchmarks run --threads $(THREADS) $(if $(QUICK),--quick) $(BENCH)

bench-compare: venv  ## is anything of ours slower than the stored baseline?
	$(BIN)/python -m benchmarks compare

build: venv  ## wheel and source archive in dist/
	$(BIN)/python -m build --outdir dist

clean:  ## remove environments and caches
	rm -rf $(VENV) $(VENV)-floor build dist .pytest_cache .mypy_cache .ruff_cache *.egg-info
