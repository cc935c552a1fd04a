# make serve   set everything up and serve the default model on 127.0.0.1:8000
# make test    set everything up and run the tests
# make bench   measure octavo alone (bench/alone.py; ARGS='--runs 3')
# make bench-peers  measure octavo beside other engines (bench/peers.py; ARGS='--runs 3 …')
# make native  rebuild the native library in the source tree (for work on csrc/)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := .stamps
MODEL ?=
ARGS ?=

NATIVE := octavo/backends/native/liboctavo.so
CSRC := $(shell find csrc -name '*.cpp' -o -name '*.h') CMakeLists.txt

.PHONY: serve test native lint setup bench bench-peers clean

serve: $(STAMPS)/install
	@exec $(BIN)/octavo serve $(MODEL) $(ARGS)

test: $(STAMPS)/dev lint
	$(BIN)/python -m pytest $(ARGS)

lint: $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(STAMPS)/install

bench: $(STAMPS)/install
	$(BIN)/python bench/alone.py $(ARGS)

bench-peers: $(STAMPS)/dev
	$(BIN)/python bench/peers.py $(ARGS)

native: $(NATIVE)

# The package is installed in place: Python from the tree, the native library from the build.
$(STAMPS)/install: $(VENV)/bin/python pyproject.toml $(CSRC)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e .
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/dev: $(STAMPS)/install
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e '.[dev]'
	@mkdir -p $(STAMPS) && touch $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo 'octavo needs Python 3.11 or newer; set PYTHON=…' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'scikit-build-core>=0.11' cmake ninja

$(NATIVE): $(CSRC)
	$(BIN)/cmake -S . -B build/dev -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja
	$(BIN)/cmake --build build/dev

clean:
	rm -rf build $(STAMPS) $(NATIVE)
