# Two commands do all: `make demo` installs rlgraph and runs the main example, `make test` installs what is missing and tests.
PYTHON ?= python3
VENV   ?= .venv
# A pinned torch: a loose range can pull several gigabytes of another build.
TORCH  ?= torch==2.13.0
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test check docs clean

$(VENV)/.base: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing rlgraph and torch into $(VENV) (minutes the first time)"
	@$(PIP) $(TORCH)
	@$(PIP) --editable .
	@touch $@

$(VENV)/.demo: $(VENV)/.base
	@$(PIP) --editable '.[demo]'
	@touch $@

$(VENV)/.test: $(VENV)/.base
	@$(PIP) --editable '.[test]'
	@touch $@

$(VENV)/.engines: $(VENV)/.test tools/install_cpu_engines.py
	@echo "installing Ray, Megatron and vLLM for CPUs into $(VENV)"
	@$(BIN)/python tools/install_cpu_engines.py
	@touch $@

demo: $(VENV)/.demo ## warm a small model up, improve it by GRPO, show what it learned
	@$(BIN)/python examples/spell_backward/demo.py

demo-ppo: $(VENV)/.demo ## the same by PPO with a reward model
	@$(BIN)/python examples/spell_backward/demo.py --ppo

test: $(VENV)/.engines ## everything but speed; what starts clusters comes last and has the machine for itself
	@$(BIN)/python -m pytest -n 2 --dist loadfile --ignore tests/backends/ray
	@$(BIN)/python -m pytest tests/backends/ray

check: $(VENV)/.test ## style and types
	@$(BIN)/ruff check .
	@$(BIN)/mypy

docs: $(VENV)/.base ## the documents as a site in build/docs
	@$(PIP) --editable '.[docs]'
	@$(BIN)/sphinx-build --quiet docs build/docs

clean:
	rm -rf $(VENV) build runs .pytest_cache .mypy_cache .ruff_cache
