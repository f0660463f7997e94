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

# What installs packages, mounts, or keeps the machine busy by itself runs alone; the rest in one process a core.
ALONE := browser or mount or s3 or teacher
test: check
	$(BIN)/python -m pytest -m "$(ALONE)"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not ($(ALONE))" --numprocesses auto --dist loadfile

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
