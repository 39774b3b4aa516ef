# Two commands set everything up from a fresh clone with Python and make: `make decode` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt

.PHONY: decode test

decode: .venv/.installed
	$(BIN)/dspark decode --input examples/prompts.jsonl --overwrite

test: .venv/.installed-test build/typing/.linked
	$(BIN)/ruff check .
	$(BIN)/mypy
	# One thread a process and one process a core: threads of several processes would wait for each other.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not gpu" --numprocesses auto --dist loadfile

.venv/.created:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.installed: .venv/.created pyproject.toml constraints.txt
	$(INSTALL) --editable .
	@touch $@

# With the test extra the package itself is installed too, so that `make decode` after it has nothing left to do.
.venv/.installed-test: .venv/.created pyproject.toml constraints.txt
	$(INSTALL) --editable '.[test]'
	@touch .venv/.installed $@

# The type checker finds packages by folder names only: link each folder under its import name.
build/typing/.linked: pyproject.toml Makefile
	@rm -rf build/typing && mkdir -p build/typing/dspark
	@sed -n '/package-dir\]/,/^$$/s/^"dspark\.\(.*\)" = "\(.*\)"/\1 \2/p' pyproject.toml | \
		while read -r name folder; do ln -s "../../../$$folder" "build/typing/dspark/$$name"; done
	@touch $@
