# demo: the whole road on this machine; test: all tests; lab: JupyterLab; lint; bench.
PYTHON ?= python3
REQUIREMENTS := $(if $(shell nvidia-smi -L 2>/dev/null),requirements.txt,requirements-cpu.txt)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(REQUIREMENTS)

.PHONY: demo test lab lint bench install

install: $(STAMP)

# Both requirement files are complete, hence --no-deps; a changed file installs again.
$(STAMP): $(REQUIREMENTS) pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r $(REQUIREMENTS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# Every stage leaves a run folder and prints it; the next stage reads what it left.
demo: $(STAMP)
	set -e; export PATH="$(CURDIR)/$(BIN):$$PATH"; \
	data=$$(arcnb run 01 -f demo --name demo-data); \
	sampled=$$(arcnb run 03 -f demo --name demo-inference -p tasks $$data/tasks.parquet); \
	refine=$$(arcnb run 04 -f demo --name demo-refinement -p tasks $$data/tasks.parquet \
	    -p predictions $$sampled/predictions); \
	trained=$$(arcnb run 05 -f demo --name demo-grpo -p tasks $$data/tasks.parquet); \
	table=$$(arcnb run 06 -f demo --name demo-evaluation -p tasks $$data/tasks.parquet \
	    -p predictions $$sampled/predictions); \
	arcnb report $$data $$sampled $$refine $$trained $$table -o runs/index.html --title "arcnb demo"

test: $(STAMP)
	$(BIN)/python -m pytest

lab: $(STAMP)
	$(BIN)/jupyter lab notebooks

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(STAMP)
	for script in bench/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done
