"""Lowerings of ATen ops to kernels, shared by eager execution and the compiler."""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Imports every module of lowerings in this package."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f".{module.name}", __name__)
