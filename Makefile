# make demo   train on handwritten digits, judge, write the report
# make test   run the tests
# make check  format, lint, types and tests
# make docs   build the documentation into site/
# Each first makes a virtual environment in .venv, once, and adds to it what it needs: the demo varcon alone, the tests
# also what examples, notebooks, trackers and docs use.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
READY := .venv/.ready
TESTABLE := .venv/.testable
DOCUMENTED := .venv/.documented
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

.PHONY: demo test check docs format clean

demo: $(INSTALLED)
	$(BIN)/varcon demo

test: $(TESTABLE)
	$(BIN)/python -m pytest -n auto --dist loadfile

check: $(TESTABLE)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto --dist loadfile

docs: $(DOCUMENTED)
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

format: $(READY)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -e .
	touch $@

$(READY): $(INSTALLED)
	$(INSTALL) -e '.[dev,benchmarks]'
	touch $@

$(TESTABLE): $(READY)
	$(INSTALL) -e '.[dev,benchmarks,examples,notebooks,tensorboard,wandb,docs]'
	touch $@

$(DOCUMENTED): $(INSTALLED)
	$(INSTALL) -e '.[docs]'
	touch $@

clean:
	rm -rf .venv build site src/*.egg-info .pytest_cache .ruff_cache .mypy_cache
