# Every command sets everything up by itself: a virtual environment, the package and what it needs. The packages that
# polydice is tested inside of (nnU-Net, …) have an environment of their own, .venv-hosts, and so has the site, .venv-docs.
PYTHON ?= python3
BIN := .venv/bin
HOSTS := .venv-hosts/bin
DOCS := .venv-docs/bin

.PHONY: test test-torch test-kernels test-hosts demo docs lint clean

test: lint
	$(MAKE) --jobs=2 --output-sync=target test-torch test-kernels

test-torch: .venv/installed
	$(BIN)/python -m pytest --ignore=tests/hosts

# Triton's interpreter takes one core: beside the others it costs little time.
test-kernels: .venv/installed
	TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/kernels/test_triton.py tests/kernels/test_head_fused.py tests/kernels/test_plan.py

test-hosts: .venv-hosts/installed
	$(HOSTS)/python -m pytest tests/hosts

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml

docs: .venv-docs/installed
	$(DOCS)/sphinx-build --quiet --fail-on-warning --keep-going -c docs . build/docs

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

.venv-docs/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-docs
	$(DOCS)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

clean:
	rm -rf .venv .venv-hosts .venv-docs build dist .mypy_cache .pytest_cache .ruff_cache
