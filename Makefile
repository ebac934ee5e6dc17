PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# As many workers as there are cores; each test process computes on one thread.
JOBS ?= auto
ONE_THREAD := OMP_NUM_THREADS=1

.PHONY: demo test test-fast docs lint format constraints clean

demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py --outdir out/demo

test: $(VENV)/.installed
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS)

test-fast: $(VENV)/.installed
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) -m "not slow"

# build/docs/index.html; a warning is an error. The variable silences an announcement of the theme's authors.
docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# mypy and import-linter need the package under its name: .build/src/pfvm is the repository root.
lint: $(VENV)/.installed
	mkdir -p .build/src && ln -sfn ../.. .build/src/pfvm
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=.build/src $(BIN)/mypy -p pfvm
	$(BIN)/lint-imports

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

constraints: $(VENV)/.installed
	(head -1 constraints.txt; $(BIN)/python -m pip freeze --exclude-editable --all | grep -v '^pip==' | sed 's/+cpu//') > constraints.new
	mv constraints.new constraints.txt

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[all]' --constraint constraints.txt
	touch $@

clean:
	rm -rf $(VENV) .build build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
