"""``torch-webgpu bench dispatch``."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from .bench_run import RESULTS, AsJson, Out, Quick, measure

if TYPE_CHECKING:
    from ..bench.session import Session


class Implementation(str, Enum):
    """WebGPU libraries; ``dawn-null`` is Dawn's driver that does nothing."""

    wgpu = "wgpu"
    dawn = "dawn"
    null = "dawn-null"


Implementations = Annotated[
    list[Implementation] | None, typer.Option(help="Only these; repeatable.", show_default="all installed")
]


def names_of(implementations: list[Implementation] | None) -> list[str]:
    """Their names in a fixed order."""
    return sorted({i.value for i in implementations or ()})


def dispatch(
    implementation: Implementations = None,
    quick: Quick = False,
    as_json: AsJson = False,
    folder: Out = RESULTS,
) -> None:
    """What a dispatch costs by every way to make it, on every implementation and adapter."""
    names = names_of(implementation)

    def run(session: Session) -> None:
        from ..bench.dispatch import dispatch

        dispatch(session, names)

    options = [f"--implementation={name}" for name in names]
    measure("dispatch", run, quick, as_json, folder, options)
