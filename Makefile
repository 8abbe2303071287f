# Everything a newcomer needs, on a machine that has only Python (3.11+, with venv).
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# One thread in each process: tests start programs that would otherwise compete for the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist worksteal

.PHONY: demo test quick install lint docs bench fuzz wheel sanitize clean

demo: install          ## weather stations with gaps, then the paper's pendulum at small scale: build/demo, 2 minutes
	$(BIN)/python examples/demo.py

test: install          ## all tests but those of `make wheel`
	$(PYTEST) -m "not wheel"

quick: install         ## the tests without the slow ones and the real data, with four models for each kind of data
	$(PYTEST) -m "not slow and not data and not every_model and not wheel"

install: $(INSTALLED)  ## make .venv with the pinned dependencies; does nothing when that is done

lint: install          ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: install          ## the documentation site in build/site; a broken link or an undocumented public object fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: install         ## speed, one thread, CPU time: tables on the screen and JSON in build/bench
	$(BIN)/python benchmarks/layers.py
	CRU_NATIVE=0 $(BIN)/python benchmarks/launches.py
	$(BIN)/python benchmarks/models.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/stream.py
	$(BIN)/python benchmarks/tables.py

fuzz: install          ## random problems at the edges of what is promised, 10 minutes; MINUTES=30 for more, SEED=1 for others
	$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),10) --seed $(or $(SEED),0)

wheel: install         ## a wheel with compiled filters, in build/wheel, and its tests
	rm -rf build/wheel
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=true $(BIN)/python -m hatchling build --target wheel --directory build/wheel
	CRU_WHEEL_DIR=build/wheel $(BIN)/python -m pytest -m wheel tests/native

sanitize: install      ## the tests of the compiled code under AddressSanitizer and UBSan
	$(BIN)/python -m tests.sanitize

clean:                 ## back to a fresh clone
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,docs]'
	touch $@
