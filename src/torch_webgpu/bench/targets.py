"""The targets that this process can measure on: a webgpu device, the processor, CUDA, MPS."""

from __future__ import annotations

from typing import Any

import torch

from .environment import cpu_name
from .schema import Target


def webgpu_target() -> Target:
    """The webgpu device of this process; raises NoAdapterError where there is none."""
    p = torch.get_device_module("webgpu").get_device_properties()
    kind: Any = p.kind if p.kind in ("discrete", "integrated", "cpu") else "unknown"
    return Target(
        kind="webgpu",
        implementation=p.implementation,
        version=_version({"wgpu": "wgpu", "dawn": "dawn-python"}.get(p.implementation, "")),
        adapter=p.name,
        adapter_kind=kind,
        backend=p.backend,
        driver=p.driver,
        features=tuple(sorted(p.features)),
        limits=p.limits,
    )


def torch_target(device: str) -> Target:
    """PyTorch's own ``cpu``, ``cuda`` or ``mps``."""
    kind: Any = device
    named = {"implementation": "torch", "version": torch.__version__}
    if device == "cuda":
        return Target(
            kind=kind,
            adapter=torch.cuda.get_device_name(),
            adapter_kind="discrete",
            backend=f"CUDA {torch.version.cuda}",
            **named,  # type: ignore[arg-type]
        )
    adapter_kind: Any = "cpu" if device == "cpu" else "integrated"
    return Target(kind=kind, adapter=cpu_name(), adapter_kind=adapter_kind, **named)  # type: ignore[arg-type]


def target_of(device: str) -> Target:
    """The target of a PyTorch device type."""
    return webgpu_target() if device == "webgpu" else torch_target(device)


def missing(device: str) -> str | None:
    """Why there is no such device in this process; None where there is one."""
    if device == "cuda" and not torch.cuda.is_available():
        return "this PyTorch finds no CUDA device"
    if device == "mps" and not torch.backends.mps.is_available():
        return "this PyTorch finds no MPS device (macOS on Apple silicon)"
    return None


def wait(device: str) -> None:
    """Waits for a device's work."""
    if device != "cpu":
        torch.get_device_module(device).synchronize()


def peak_memory(device: str) -> int | None:
    """Most bytes in tensors on a device since ``reset_peak_memory``; None where PyTorch does not count them."""
    if device not in ("webgpu", "cuda"):
        return None
    return int(torch.get_device_module(device).max_memory_allocated())


def reset_peak_memory(device: str) -> None:
    """Starts ``peak_memory`` again."""
    if device in ("webgpu", "cuda"):
        torch.get_device_module(device).reset_peak_memory_stats()


def _version(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package) if package else ""
    except metadata.PackageNotFoundError:
        return ""
