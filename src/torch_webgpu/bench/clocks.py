"""Clocks of GPU and processor, before and after: a device that was slow because it was asleep or hot shows it here."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from typing import Any

import psutil

from .meters import NoMeterError, nvml_handle

_QUERIES = {"graphics": "clocks.gr", "memory": "clocks.mem", "most graphics": "clocks.max.gr"}


def clocks(name: str, kind: str) -> dict[str, float]:
    """Clocks (MHz) now, empty where they are not told.

    An NVIDIA GPU's are by NVML, with its temperature (°C) and the reasons for lowered clocks (NVML's bits), else by
    ``nvidia-smi``; of a CPU or a rasteriser they are the processor's.

    Args:
        name: of the adapter.
        kind: of the adapter, as in ``Target``.
    """
    if kind == "null":
        return {}
    if kind == "cpu":
        frequency = psutil.cpu_freq()
        return {"cpu": float(frequency.current)} if frequency and frequency.current else {}
    return by_nvml(name) or _by_command(name)


def by_nvml(name: str, library: Any = None) -> dict[str, float]:
    """Clocks of the one NVIDIA GPU of a name by NVML; empty where it does not answer."""
    try:
        nvml, handle = nvml_handle(name, library)
    except NoMeterError:
        return {}
    found: dict[str, float] = {}
    asked = {
        "graphics": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "most graphics": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "temperature": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "throttle reasons": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
    }
    for key, ask in asked.items():
        with suppress(nvml.NVMLError):  # some boards do not tell some of them
            found[key] = float(ask())
    return found


def _by_command(name: str) -> dict[str, float]:
    found = {key: nvidia_smi(query, name) for key, query in _QUERIES.items()}
    return {key: float(value) for key, value in found.items() if value and value.replace(".", "").isdecimal()}


def nvidia_smi(query: str, name: str) -> str | None:
    """What ``nvidia-smi`` says of the first GPU of that name."""
    if "nvidia" not in name.lower() or not shutil.which("nvidia-smi"):
        return None
    command = ["nvidia-smi", f"--query-gpu=name,{query}", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    for line in lines:
        found, _, value = line.partition(",")
        if found.strip().lower() in name.lower() or name.lower() in found.strip().lower():
            return value.strip()
    return None
