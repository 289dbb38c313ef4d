"""Settings of every test run, made before torch is imported: a quiet adapter, no network, no run without a device."""

from __future__ import annotations

import os
import sys
import tempfile
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, seed, settings
from stage import STAGE

# Hypothesis: a few examples, always the same for one test in one stage; --hypothesis-profile=thorough takes many fresh ones.
settings.register_profile(
    "quick", max_examples=20, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=1000, derandomize=False, print_blob=True)
settings.load_profile("quick")

# Vulkan loaders want a runtime directory of their own; the name survives pytest-xdist's workers, which inherit it.
os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.mkdtemp(prefix="torch-webgpu-"))
# Naming the adapter silences the warning about CPU rasterisers.
os.environ.setdefault("TORCH_WEBGPU_ADAPTER", "0")
# Tests compile what they look at; those of the cache set a folder of their own.
os.environ.setdefault("TORCH_WEBGPU_CACHE", "off")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# The files that take longest. They come first, so that no worker is left with one when the others are done.
LONGEST = (
    "smollm",
    "generation",
    "opinfo",
    "cli",
    "compiled_models",
    "device",
    "bench_models",
    "compiler_aliasing",
    "errors",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Orders the files; each stays whole."""
    places = {f"test_{name}": i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Other random examples for each stage and each parameter of a test: together they see more."""
    if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj) and settings().derandomize:
        seed(zlib.crc32(f"{STAGE} {item.nodeid}".encode()))(item.obj)


@pytest.fixture(scope="session", autouse=True)
def untimed_guards() -> None:
    """Spares each compilation of Dynamo the flush of the processor's caches with which it times its guards for a log."""
    if guards := sys.modules.get("torch._dynamo.guards"):
        guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def recipes_of_its_own(request: pytest.FixtureRequest) -> Iterator[None]:
    """What is prepared while a test has changed a constant serves no other test, nor the other way round."""
    if "monkeypatch" not in request.fixturenames:
        yield
        return
    from torch_webgpu import _C

    _C.clear_recipes()
    yield
    _C.clear_recipes()


def pytest_sessionstart() -> None:
    """Without an adapter the run fails, it never skips."""
    try:
        _adapter()
    except Exception as e:
        pytest.exit(f"The tests need a WebGPU device: {e}", returncode=3)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names the implementation and adapter the run was about."""
    terminalreporter.write_line(f"webgpu: {_adapter()}")


def _adapter() -> str:
    import torch  # noqa: F401 - registers the device

    from torch_webgpu import runtime

    adapter = runtime.device().adapter
    return f"{adapter.name} ({adapter.implementation}, {adapter.backend}, {adapter.driver or adapter.kind})"
