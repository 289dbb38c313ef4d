"""Figures above what the device can do: they are refused when they are measured, and told of files that hold some."""

from __future__ import annotations

import statistics

from .names import RATE
from .peaks import Peak, peak_of
from .schema import Measurement, Run, Target

#: Bytes that no last-level cache holds: less may be read faster than memory allows.
CACHED = 1 << 30
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def reached(m: Measurement) -> dict[str, float]:
    """``flops`` and ``bytes`` a second that the median of a measurement means; nothing where it does not state its work."""
    if not m.work:
        return {}
    median = statistics.median(m.samples)
    if m.metric == RATE:
        return {kind: work * median for kind, work in m.work.items()}
    seconds = _SECONDS.get(m.unit)
    if seconds is None:
        return {}
    return {kind: work / (median * seconds) if median > 0 else float("inf") for kind, work in m.work.items()}


def impossible(m: Measurement, target: Target) -> str | None:
    """Why a measurement cannot be true; None where nothing speaks against it, or the device's peak is not known."""
    peak = peak_of(target) if m.work else None
    if peak is None:
        return None
    for kind, rate in reached(m).items():
        most = _most(peak, kind, m, target)
        if rate > most * peak.slack and (kind != "bytes" or m.work["bytes"] >= CACHED):
            unit = "FLOP/s" if kind == "flops" else "bytes/s"
            source = "measured here" if peak.measured else "by its datasheet"
            return (
                f"{m.experiment}, {m.workload}, {m.method}, {m.metric} on {target.label}: its median means {rate:.3g} "
                f"{unit}, but {target.adapter} has {most:.3g} ({source}): something was not waited for, or not computed"
            )
    return None


def _most(peak: Peak, kind: str, m: Measurement, target: Target) -> float:
    """Float32 has the vector units; on CUDA it may be rounded to TF32 by the matrix units, at half the rate of float16."""
    if kind == "bytes":
        return peak.bytes
    if m.parameters.get("dtype", "float32") != "float32" or m.parameters.get("quantize"):
        return max(peak.matrix, peak.flops)
    return max(peak.flops, peak.matrix / 2) if target.kind == "cuda" else peak.flops


def all_impossible(run: Run) -> list[str]:
    """Of each measurement of a run that cannot be true, why."""
    return [why for m in run.measurements if (why := impossible(m, run.target_of(m))) is not None]
