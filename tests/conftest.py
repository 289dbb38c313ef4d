"""Settings of every test run, made before torch is imported: a quiet adapter, no network, no run without a device."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Hypothesis: always the same few examples; --hypothesis-profile=thorough takes many fresh ones.
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
