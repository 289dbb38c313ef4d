"""The environment of a run, and the targets that the present machine has."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

import psutil

from .schema import Environment

PACKAGES = ("torch_webgpu", "torch", "wgpu", "dawn-python", "transformers", "onnxruntime", "onnxruntime-webgpu", "numpy")
_PREFIXES = ("TORCH_WEBGPU_", "CUDA_", "VK_", "OMP_", "MKL_")


def environment() -> Environment:
    """What is known about the machine and the libraries now."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return Environment(
        system=platform.platform(),
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=psutil.virtual_memory().total,
        versions=versions,
        load=psutil.getloadavg()[0],
        governor=_governor(),
        variables={k: v for k, v in sorted(os.environ.items()) if k.startswith(_PREFIXES)},
    )


def cpu_name() -> str:
    """The processor's own name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _governor() -> str | None:
    try:
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    except OSError:
        return None
