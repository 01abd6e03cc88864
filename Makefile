# Both commands set everything up by themselves: a virtual environment in .venv, the package and what it needs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: test demo lint clean

test: lint
	$(BIN)/python -m pytest
	TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/kernels/test_triton.py

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: .venv/installed
	$(BIN)/polydice study demo --out runs/demo --cache runs/cache

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv dist .mypy_cache .pytest_cache .ruff_cache
