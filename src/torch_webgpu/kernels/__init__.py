"""WGSL templates (Jinja2) of the kernels that are more than one expression."""

from __future__ import annotations

from functools import cache
from typing import Any

import jinja2

from ..wgsl import TEMPLATES


@cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(TEMPLATES)
    return jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def render(template: str, **context: Any) -> str:
    """The text of ``templates/<template>.wgsl``; ``w`` in it gives uniform words by name."""
    return _environment().get_template(f"{template}.wgsl").render(**context)
