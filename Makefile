# `make demo` and `make test` are all a newcomer types: each sets up what is missing first.
.PHONY: help setup demo test test-all style lock clean

PYTHON := $(shell for p in .venv/bin/python /usr/bin/python3 python3; do command -v $$p && break; done)

help: ## this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 12

setup: ## compiler, environment, torch, package: only what is missing
	@$(PYTHON) -I -S scripts/setup.py

demo: setup ## grade the example submissions and print their verdicts
	@./assay demo

test: setup ## the fast half of the tests
	@.venv/bin/python scripts/suites.py fast

test-all: setup ## every test, with a budget per suite; what CI runs
	@.venv/bin/python scripts/suites.py all

style: setup ## ruff, mypy, arrows, dependencies
	@.venv/bin/python scripts/suites.py fast style

lock: setup ## write requirements.lock from what is installed in .venv
	@.venv/bin/python scripts/lock.py

clean: ## remove the environment and everything built; grades are kept elsewhere
	rm -rf .venv var build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
