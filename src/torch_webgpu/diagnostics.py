"""What ``torch-webgpu info`` knows: versions, implementations, adapters, and which one a program would get.

Every implementation is asked in a process of its own, so that a driver that crashes or prints takes nothing with it.
``python -m torch_webgpu.diagnostics wgpu`` is such a process.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import Any

IMPLEMENTATIONS = {"wgpu": "wgpu", "dawn": "dawn-python"}
_PACKAGES = ("torch_webgpu", "torch", *IMPLEMENTATIONS.values(), "transformers")
_TIMEOUT = 120.0


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def probe(name: str) -> dict[str, Any]:
    """Facts of one implementation, asked in this process.

    Returns:
        ``installed``; ``advice`` (how to get it) where it is not; ``adapters``; ``chosen``, the index of the adapter
        that the environment names, or ``error``, why there is none.
    """
    from . import runtime
    from .config import config
    from .errors import MissingImplementationError, WebGPUError

    facts: dict[str, Any] = {"installed": True, "advice": None, "error": None, "adapters": [], "chosen": None}
    try:
        adapters = runtime.implementation(name).adapters()
        shown = ("index", "name", "kind", "backend", "driver", "features", "limits")
        facts["adapters"] = [{key: getattr(adapter, key) for key in shown} for adapter in adapters]
        facts["chosen"] = runtime.choose_adapter(adapters, config.adapter).index
    except MissingImplementationError as e:
        facts.update(installed=False, advice=str(e))
    except WebGPUError as e:
        facts["error"] = str(e)
    return facts


def _start_probe(name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch_webgpu.diagnostics", name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")


def _finish_probe(process: subprocess.Popen[str]) -> dict[str, Any]:
    failed: dict[str, Any] = {"installed": None, "advice": None, "adapters": [], "chosen": None}
    try:
        output, complaints = process.communicate(timeout=_TIMEOUT)
        return dict(json.loads(output.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {**failed, "error": f"The driver did not answer within {_TIMEOUT:.0f} s."}
    except (ValueError, IndexError):
        last = (complaints.strip().splitlines() or ["it printed nothing"])[-1]
        return {**failed, "error": f"Asking for adapters failed (exit code {process.returncode}): {last}"}


def _choose(implementations: dict[str, dict[str, Any]], impl: str, adapter: str) -> dict[str, Any] | None:
    """What ``runtime.start`` would take, and why."""
    if impl != "auto":
        name, why = impl, f"TORCH_WEBGPU_IMPL={impl}"
    elif implementations["wgpu"]["installed"] is not False:
        name, why = "wgpu", "wgpu-native is taken where it is installed (TORCH_WEBGPU_IMPL is not set)"
    else:
        name, why = "dawn", "wgpu-native is not installed"
    facts = implementations[name]
    if facts["chosen"] is None:
        return None
    which = f"TORCH_WEBGPU_ADAPTER={adapter}" if adapter else "its first adapter (TORCH_WEBGPU_ADAPTER is not set)"
    index = facts["chosen"]
    taken = facts["adapters"][index]["name"]
    return {"implementation": name, "adapter": index, "name": taken, "reason": f"{why}; {which}"}


def _missing(implementations: dict[str, dict[str, Any]]) -> list[str]:
    texts = [text for facts in implementations.values() for text in (facts["advice"], facts["error"]) if text]
    return list(dict.fromkeys(texts))


def probe_all(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Facts and wheel's version of the named implementations, each asked in a process of its own; see ``probe``."""
    processes = {name: _start_probe(name) for name in names}
    return {
        name: {"version": _version(IMPLEMENTATIONS[name]), **_finish_probe(process)} for name, process in processes.items()
    }


def collect() -> dict[str, Any]:
    """All facts, fit for JSON. Imports neither torch nor a driver into this process.

    Raises:
        ValueError: for an environment variable with a value that is not allowed.
    """
    from .config import config

    implementations = probe_all(IMPLEMENTATIONS)
    return {
        "versions": {"python": platform.python_version(), **{package: _version(package) for package in _PACKAGES}},
        "platform": platform.platform(),
        "environment": {key: value for key, value in sorted(os.environ.items()) if key.startswith("TORCH_WEBGPU_")},
        "implementations": implementations,
        "chosen": _choose(implementations, config.impl, config.adapter),
        "missing": _missing(implementations),
    }


if __name__ == "__main__":
    print("\n" + json.dumps(probe(sys.argv[1])), flush=True)
    os._exit(0)  # drivers that crash while they unload have nothing left to say
