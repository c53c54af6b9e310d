# demo: the whole loop on this machine; test: all tests; test-all: with their repetition; lab: JupyterLab; lint;
# bench;
# docs, gallery, site, strip, git: for those who change notebooks and pages.
PYTHON ?= python3
# The GPU packages are for Python 3.12 and CUDA 13, whose drivers begin with 580.
DRIVER := $(shell nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 | cut -d . -f 1)
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
GPU_WAY := $(and $(filter 3.12,$(VERSION)),$(shell [ "$(DRIVER)" -ge 580 ] 2>/dev/null && echo yes))
ifneq ($(DRIVER),)
ifeq ($(GPU_WAY),)
$(info There is a GPU, but its packages need Python 3.12 (found $(VERSION); PYTHON=python3.12 chooses one) and a driver \
from 580 on (found $(DRIVER)): everything runs on the CPU.)
endif
endif
REQUIREMENTS := $(if $(GPU_WAY),requirements.txt,requirements-cpu.txt)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(REQUIREMENTS)

.PHONY: demo gallery test test-all lab docs site strip git lint bench install

install: $(STAMP)

# Both requirement files are complete, hence --no-deps; a changed file installs again.
$(STAMP): $(REQUIREMENTS) requirements-zero3.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r $(REQUIREMENTS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/zero3 -r requirements-zero3.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# Every stage leaves a run folder, and what is done with the same inputs is skipped; the last line is the report.
demo: $(STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" arcnb pipeline notebooks/pipelines/demo.yaml --report runs/index.html --title "arcnb demo"

# Pictures of the pages of all notebooks: the demo's runs, small ones of the others beside them, and a browser.
gallery: demo
	PATH="$(CURDIR)/$(BIN):$$PATH" arcnb pipeline notebooks/pipelines/gallery.yaml
	$(BIN)/python docs/tooling/gallery.py docs/gallery --index runs/index.html \
	    $(addprefix demo-,data inference refinement grpo trained evaluation) $(addprefix gallery-,sft search comparison coding untrained)

# Three tests at a time where 16 GB of memory are free, else two: a quarter of what tests take is waiting. A file is in
# one process: its tests share engines and runs.
WORKERS ?= $(shell awk '/^MemAvailable/ {print $$2 < 16e6 ? 2 : 3}' /proc/meminfo)

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not repetition"

test-all: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# The launcher page lists the notebooks, models, task sets and runs; the workspace is the whole repository.
lab: $(STAMP)
	$(BIN)/jupyter lab --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/notebooks/00_start.ipynb \
	    $(LAB_FLAGS)

# The reference pages and the launcher's list, from the notebooks and the code.
docs: $(STAMP)
	$(BIN)/python docs/tooling/notebooks.py
	$(BIN)/python docs/tooling/reference.py

# docs/ as a site in site/, which opens without a network. Dead links and pages outside its map are errors.
site: $(STAMP) $(VENV)/site/.installed
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=$(VENV)/site $(BIN)/python -m mkdocs build --quiet

$(VENV)/site/.installed: requirements-docs.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/site -r $<
	touch $@

# Notebooks without outputs and without an editor's traces, as git keeps them.
strip: $(STAMP)
	$(BIN)/python -m arcnb.lab.notebooks.stripping notebooks/*.ipynb

# This clone compares and merges notebooks cell by cell (git diff, git merge).
git: $(STAMP)
	git config diff.jupyternotebook.command "$(CURDIR)/$(BIN)/git-nbdiffdriver diff"
	git config merge.jupyternotebook.name "nbdime"
	git config merge.jupyternotebook.driver "$(CURDIR)/$(BIN)/git-nbmergedriver merge %O %A %B %L %P"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python docs/tooling/prose.py

# Benchmarks at small sizes: two cores without a GPU, an estimated quarter of an hour. bench/README.md has larger ones.
bench: $(STAMP)
	$(BIN)/python bench/executor.py --scale 0.3
	$(BIN)/python bench/aggregate_table.py
	$(BIN)/python bench/inference_throughput.py
	$(BIN)/python bench/cpu_engine.py
	$(BIN)/python bench/shared_prefix_attention.py
	$(BIN)/python bench/shared_prefix.py
	$(BIN)/python bench/grpo_speed.py
