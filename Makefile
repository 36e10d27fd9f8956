# `make demo` and `make test` do everything on a machine that has Python 3.11 and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
# cpu: builds without CUDA, where their index answers; cuda: what the usual index has (5 GB).
TORCH ?= cpu
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
VERSIONS ?= 3.11 3.12 3.13
WORKERS ?= 2
CASES ?= 1000000
SEED ?= 0

.PHONY: demo test lint tests test-slow test-versions test-lowest load fuzz attack faults goldens house audit soak bench format docs screenshots clean

demo: $(VENV)/.installed
	$(BIN)/metatkgr demo

test: lint tests

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

tests: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not slow"

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

# The quick tests, and an install without the repository, on every Python that is here and runs:
# where versions are switched, the name of one that is not chosen is there and does not.
test-versions:
	set -e; for version in $(VERSIONS); do \
		if python$$version -c '' 2>/dev/null; \
		then $(MAKE) tests PYTHON=python$$version VENV=build/python-$$version && \
			build/python-$$version/bin/python -m pytest -m slow tests/test_packaging.py; \
		else echo "python$$version is not here: skipped"; fi; \
	done

# The same with the lowest versions that pyproject.toml allows.
test-lowest: $(VENV)/.installed-dev
	mkdir -p build
	cd tests && ../$(BIN)/python -m audit.packages --lowest > ../build/lowest.txt
	$(PYTHON) -m venv build/lowest
	build/lowest/bin/python -m pip --disable-pip-version-check install --quiet \
		-c build/lowest.txt -e '.[plots,postgresql,mcp]' httpx hypothesis pandas pytest
	build/lowest/bin/python -m pytest -m "not slow" tests/cli tests/data tests/evaluation \
		tests/forecasting tests/graph tests/serving

# Reads and writes from 1 and 8 clients on an ingested world, then kill -9 during writes; also
# `make load LOAD="--facts 1e6 --store postgresql"`.
load: $(VENV)/.installed-dev
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m service_load $(LOAD) --out ../results/load.json

# Broken and hostile input of every kind; see docs/hardening.md. `make fuzz CASES=20000` is short.
fuzz: $(VENV)/.installed-dev
	cd tests && PYTHONPATH=.. OMP_NUM_THREADS=1 ../$(BIN)/python -m fuzz.campaign --cases $(CASES) \
		--seed $(SEED) --workers $(WORKERS) --out ../results/fuzz.json

# Attacks on a service and its files, on SQLite and PostgreSQL, with schemathesis; one table. Also
# `make attack ATTACK="--kills 100"`.
attack: $(VENV)/.installed-dev
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m attack.campaign $(ATTACK) \
		--out ../results/attack.json

# kill -9 at 50 random moments each of trainings, services that are writing, one of two workers (on
# SQLite and PostgreSQL) and appends; `python -m faults.campaign --only workers --points 100` is one.
faults: $(VENV)/.installed-dev
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m faults.campaign --seed $(SEED) \
		--out ../results/faults.json

# Ten minutes of mixed load on one service; its memory must stay level. Two hours:
# `make soak SOAK="--seconds 7200"`.
soak: $(VENV)/.installed-dev
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m faults.soak $(SOAK) --out ../results/soak.json

# Ranks, tasks, readers, appends and answers are as recorded; `make goldens GOLDENS=--all` is long.
goldens: $(VENV)/.installed-dev
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m goldens.check $(GOLDENS)

# In how many files the package runs for one training, one evaluation and one forecast.
house: $(VENV)/.installed-dev
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m house.walk

# Pins, licences, undeclared imports; the bill of materials, and requirements with hashes for each
# extra and Python, in build/audit; then known vulnerabilities, for which the network is asked.
audit: $(VENV)/.installed-dev $(VENV)/audit/bin/pip-audit
	$(BIN)/python -m pytest tests/audit tests/test_packaging.py
	cd tests && ../$(BIN)/python -m audit.packages ../build/audit
	$(VENV)/audit/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

# `make bench BENCH="read-csv --quick"` measures one thing, in small.
bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks $(BENCH)

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The pages of results, and all documents as a site in build/site; a broken link is an error.
docs: $(VENV)/.installed-docs
	$(BIN)/metatkgr reproduce --write-pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

screenshots: $(VENV)/.installed-dev
	cd tests && ../$(BIN)/python -m serving.screenshots ../docs/images

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first and by its exact pin. Of 2.13.0 and 2.13.0+cpu, pip takes the second where it is found.
$(VENV)/.torch: constraints.txt | $(BIN)/python
	if [ "$(TORCH)" = cpu ] && $(BIN)/python -c "import sys, urllib.request as r; \
		r.urlopen(sys.argv[1], timeout=10)" $(TORCH_INDEX)/torch/ 2>/dev/null; \
	then $(PIP) --extra-index-url $(TORCH_INDEX) torch; else $(PIP) torch; fi
	touch $@

$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) -e '.[plots,serve]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e '.[dev]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) -e '.[docs]'
	touch $@

# Apart, so that what audits is not among what is audited.
$(VENV)/audit/bin/pip-audit: | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip --disable-pip-version-check install --quiet pip-audit
