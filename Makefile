# activault: one command each for the demo, the tests and the checks. All of them make .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FOLDERS := analyze extract jobs store train
OUT ?= demo-out

.PHONY: demo test check types bench clean

demo: $(STAMP)
	$(BIN)/activault demo $(OUT)

# One process a core, a file of tests to a process, in the order that tests/conftest.py sets.
# Bytecode is kept, or each of the many processes that tests start compiles the project and its tests anew.
test check: export PYTHONDONTWRITEBYTECODE =
test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

check: $(STAMP) types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_import_law.py

types:
	mkdir -p .types/activault
	for folder in $(FOLDERS); do ln -sfn ../../$$folder .types/activault/$$folder; done

bench: $(STAMP)
	@test -d $(OUT)/store.zarr || { echo "make bench reads $(OUT)/store.zarr; run make demo first"; exit 1; }
	$(BIN)/python benchmarks/codecs.py $(OUT)/store.zarr

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[all,bench,dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) .types
