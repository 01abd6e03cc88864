# Every command sets everything up by itself: a virtual environment, the package and what it needs. The packages that
# polydice is tested inside of (nnU-Net, …) have an environment of their own, .venv-hosts.
PYTHON ?= python3
BIN := .venv/bin
HOSTS := .venv-hosts/bin

.PHONY: test test-hosts demo lint clean

test: lint
	$(BIN)/python -m pytest --ignore=tests/hosts
	TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/kernels/test_triton.py tests/kernels/test_plan.py

test-hosts: .venv-hosts/installed
	$(HOSTS)/python -m pytest tests/hosts

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

.venv-hosts/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-hosts
	$(HOSTS)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[study,hosts]' pytest hypothesis
	touch $@

clean:
	rm -rf .venv .venv-hosts dist .mypy_cache .pytest_cache .ruff_cache
