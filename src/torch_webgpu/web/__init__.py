"""Models and measurements in browsers: bundles, pages, and the local server that gives them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .exporter import export
    from .images import export_classifier
    from .language import export_llm

_HOMES = {"export": ".exporter", "export_classifier": ".images", "export_llm": ".language"}
__all__ = ["export", "export_classifier", "export_llm"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name], __name__), name)
