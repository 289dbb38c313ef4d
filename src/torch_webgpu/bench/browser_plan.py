"""What the measuring page measures, as one JSON document: names, sizes, WGSL, expected results. The page retypes none."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np

from . import names
from .dispatch import COUNTS, QUICK_COUNTS, QUICK_WAITED_COUNTS, WAITED_COUNTS
from .fusion import MANY, MANY_QUICK
from .fusion_cases import Case, cases
from .handwritten import Chain, Kernel
from .loop import WORKGROUP
from .loop import Kernel as Increment
from .schema import VERSION
from .session import samples, warmups

#: Where an idle queue's wait takes so many µs, the browser polls: what ends between two polls seems to take the same time.
TICK_FLOOR = 10_000
#: The n that are swept besides there, so that the work lasts longer than a tick.
TICK_COUNTS = (3_000,)


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        samples, warmups: of each quantity.
        counts: the n of ways that wait once.
        waited_counts: the n of ways that wait for each dispatch.
        many: calls of a computation that are waited for once.
    """

    quick: bool
    samples: int
    warmups: int
    counts: tuple[int, ...]
    waited_counts: tuple[int, ...]
    many: int

    @classmethod
    def of(cls, quick: bool) -> Size:
        """As in ``bench dispatch`` and ``bench fusion``."""
        counts, waited = (QUICK_COUNTS, QUICK_WAITED_COUNTS) if quick else (COUNTS, WAITED_COUNTS)
        return cls(quick, samples(quick), warmups(quick), counts, waited, MANY_QUICK if quick else MANY)


def plan(size: Size, command: Sequence[str]) -> dict[str, Any]:
    """The document.

    Args:
        command: what was asked for, for the record.
    """
    increment = Increment()
    return {
        "schema_version": VERSION,
        "version": metadata.version("torch_webgpu"),
        "command": list(command),
        "quick": size.quick,
        "samples": size.samples,
        "warmups": size.warmups,
        "names": {
            "methods": {
                "idle": names.IDLE_WAIT,
                "waited": names.WAITED,
                "readBack": names.READ_BACK,
                "unwaited": names.UNWAITED,
                "sequential": names.SEQUENTIAL,
                "passes": names.PASSES,
                "onePass": names.ONE_PASS,
            },
            "metrics": {"wall": names.WALL, "host": names.HOST, "dispatches": names.DISPATCHES, "submits": names.SUBMITS},
            "submits": {"together": names.TOGETHER, "apart": names.APART},
        },
        "dispatch": {
            "workload": names.INCREMENT,
            "wgsl": increment.code(0),
            "workgroups": increment.workgroups,
            "words": increment.workgroups * WORKGROUP,
            "counts": list(size.counts),
            "waitedCounts": list(size.waited_counts),
            "tick": {"floor": TICK_FLOOR, "counts": list(TICK_COUNTS)},
        },
        "fusion": _fusion(size.many, size.quick),
        "softwareFusion": _fusion(min(size.many, MANY_QUICK), True),  # a browser's rasteriser takes seconds for the others
    }


def _fusion(many: int, quick: bool) -> dict[str, Any]:
    return {"many": many, "cases": [_case(c) for make in cases(quick, True) if (c := make()).on_page]}


def _case(case: Case) -> dict[str, Any]:
    expected = case.expected().numpy().astype(np.float32)
    return {
        "name": case.name,
        "title": case.title,
        "parameters": case.parameters,
        "tolerance": case.tolerance,
        "expected": base64.b64encode(expected.tobytes()).decode(),
        "inputs": {name: noise.to_dict() for name, noise in case.noises.items()},
        "variants": [{"name": name, **_chain(make())} for name, make in case.chains.items()],
    }


def _chain(chain: Chain) -> dict[str, Any]:
    out = chain.kernels[-1].writes
    return {
        "out": out,
        "tensors": {**chain.temporaries, out: int(np.prod(chain.shape))},
        "kernels": [_kernel(k) for k in chain.kernels],
    }


def _kernel(kernel: Kernel) -> dict[str, Any]:
    """A kernel with accessors of plain float32 arrays."""
    reads = [name for name in dict.fromkeys(kernel.reads) if name != kernel.writes]
    head = []
    for i, name in enumerate(reads):
        head.append(f"@group(0) @binding({i}) var<storage, read> T{name}: array<f32>;")
        head.append(f"fn ld_{name}(i: u32) -> f32 {{ return T{name}[i]; }}")
    to = kernel.writes
    head.append(f"@group(0) @binding({len(reads)}) var<storage, read_write> T{to}: array<f32>;")
    head.append(f"fn st_{to}(i: u32, value: f32) {{ T{to}[i] = value; }}")
    wgsl = "\n".join([*head, kernel.source()])
    return {"label": kernel.name, "reads": reads, "writes": to, "groups": list(kernel.grid), "wgsl": wgsl}
