"""PyTorch's devices as places to run a model on: waiting for one, and its memory."""

from __future__ import annotations

from functools import cache

import torch


@cache
def missing(device: str) -> str | None:
    """Why there is no such device for PyTorch here; None where there is one. Opens none."""
    if device == "cuda" and not torch.cuda.is_available():
        return "this PyTorch finds no CUDA device"
    if device == "mps" and not torch.backends.mps.is_available():
        return "this PyTorch finds no MPS device, which macOS on Apple silicon has"
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
