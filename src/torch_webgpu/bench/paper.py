"""The published figures of arXiv 2604.02344, and which of them stand nearest to a target."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from .schema import Target

Kind = Literal["discrete", "integrated", "cpu", "unknown"]
_VENDORS = {
    "nvidia": ("nvidia", "geforce", "rtx", "tesla", "quadro"),
    "amd": ("amd", "radeon", "radv", "ryzen"),
    "intel": ("intel", "core ultra", "arc "),
    "apple": ("apple", "m1", "m2", "m3", "m4"),
}
_LIBRARIES = ("wgpu", "dawn", "chrome", "firefox", "safari", "onnxruntime", "pytorch")
_BROWSERS = ("chrome", "firefox", "safari")
_SAME = {"chromium": "chrome", "torch": "pytorch", "cuda": "pytorch"}


class Platform(BaseModel):
    """Where a published figure was measured; what the source leaves out is None."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    os: str | None = None
    gpu: str | None = None
    vendor: str | None = None
    backend: str | None = None
    impl: str | None = None

    @property
    def label(self) -> str:
        """A short name."""
        return ", ".join(filter(None, (self.gpu, self.backend, self.impl))) or "platform not recorded"

    @property
    def kind(self) -> Kind:
        """Of the adapter."""
        gpu, backend = (self.gpu or "").lower(), (self.backend or "").lower()
        if "cpu" in backend or gpu.endswith("cpu") or gpu == "ryzen 9800x3d":
            return "cpu"
        if "igpu" in gpu or gpu == "m2":
            return "integrated"
        return "discrete" if "rtx" in gpu else "unknown"


class Record(BaseModel):
    """One published figure; fields as in the data file."""

    model_config = ConfigDict(frozen=True)
    experiment: str
    what: str
    platform: Platform = Platform()
    method: str
    metric: str | None = None
    unit: str
    value: float | str
    std: float | None = None
    n: int | None = None
    source_file: str
    note: str | None = None


@dataclass(frozen=True)
class Published:
    """What the paper has for a quantity on one platform; several runs of it give a range.

    Attributes:
        exact: whether library, vendor and kind of adapter are all those of the target.
    """

    low: float
    high: float
    unit: str
    count: int
    platform: str
    exact: bool

    @property
    def text(self) -> str:
        """Range, unit and platform."""
        return f"{self.value} ({self.platform})"

    @property
    def value(self) -> str:
        """Range and unit."""
        from .report.document import number, quantity

        unit = {"us/dispatch": "us", "x": "ratio", "tok/s": "tokens/s"}.get(self.unit, self.unit)
        value = quantity(self.high, unit)
        if number(self.low) != number(self.high):
            value = f"{number(self.low)} to {value}"
        return value


@functools.cache
def records() -> tuple[Record, ...]:
    """All published figures."""
    return tuple(Record.model_validate(_whole(r)) for r in _data()["records"])


@functools.cache
def contradictions() -> tuple[str, ...]:
    """Where they disagree, as found by reading them against each other."""
    return tuple(_data()["contradictions"])


def _data() -> dict[str, Any]:
    text = resources.files("torch_webgpu.bench").joinpath("data/paper_figures.json").read_text("utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def _whole(record: dict[str, Any]) -> dict[str, Any]:
    """A few records give the platform as the GPU's name alone, or none."""
    platform = record.get("platform")
    return {**record, "platform": platform if isinstance(platform, dict) else {"gpu": platform}}


def vendor(name: str) -> str | None:
    """Who made the adapter of this name; None for rasterisers and unknown names."""
    words = name.lower()
    if any(soft in words for soft in ("llvmpipe", "lavapipe", "swiftshader", "null")):
        return None
    return next((who for who, signs in _VENDORS.items() if any(sign in words for sign in signs)), None)


def _library(name: str) -> str | None:
    words = name.lower()
    words = next((to for sign, to in _SAME.items() if words.startswith(sign)), words)
    return next((library for library in _LIBRARIES if library in words), None)


def _nearness(target: Target, platform: Platform) -> int:
    """How like the target a platform is: the library counts most, then backend family, vendor, kind of adapter."""
    score = 0
    published, ours = _library(platform.impl or ""), _library(target.implementation)
    score += 8 if published is not None and published == ours else 0
    score += 1 if (published in _BROWSERS) == (target.kind == "browser") else 0
    score += 4 if target.backend and (platform.backend or "").lower().startswith(target.backend.lower()[:5]) else 0
    made = vendor(target.adapter)
    score += 2 if made is not None and made == (platform.vendor or "").strip("?").lower() else 0
    score += 2 if target.adapter_kind == platform.kind else 0
    return score


def nearest(target: Target, wanted: Callable[[Record], bool]) -> Published | None:
    """The figures of the platform that is most like the target's; None where the paper has none that is wanted.

    Ties go to the platform with the most figures. A driver that does nothing has no platform that is like it.
    """
    if target.adapter_kind == "null":
        return None
    found: dict[Platform, list[Record]] = {}
    for record in records():
        if isinstance(record.value, float) and wanted(record):
            found.setdefault(record.platform, []).append(record)
    if not found:
        return None
    best = max(found, key=lambda p: (_nearness(target, p), len(found[p])))
    values = [float(r.value) for r in found[best]]
    library = _library(best.impl or "") == _library(target.implementation)
    alike = vendor(target.adapter) == (best.vendor or "").strip("?").lower() and target.adapter_kind == best.kind
    return Published(min(values), max(values), found[best][0].unit, len(values), best.label, library and alike)


def _of(experiment: str, method: str, metric: str = "mean") -> Callable[[Record], bool]:
    return lambda r: r.experiment == experiment and r.method.startswith(method) and r.metric == metric


def titled(experiment: str, *starts: str, metric: str | None = None) -> Callable[[Record], bool]:
    """Wanted: figures of an experiment whose name starts with one of these texts."""
    return lambda r: r.experiment == experiment and r.what.startswith(starts) and metric in (None, r.metric)


SEQUENTIAL = _of("dispatch", "sequential(")
UNWAITED = _of("dispatch", "single-op,no-sync-in-timer")
BATCHED = _of("dispatch", "batched(")
RATIO = titled("dispatch", "single-op / sequential")


def WAITED(record: Record) -> bool:  # noqa: N802 (a predicate as the ones above)
    """Wanted: one dispatch and a wait."""
    return _of("dispatch", "single-op,sync-each-op")(record) and not record.what.startswith("64x64")


#: Its names of the phases of one dispatch.
_PHASES = {
    "encoder": "encoder_create",
    "begin pass": "pass_begin",
    "set pipeline": "set_pipeline",
    "set bind group": "set_bind_group",
    "end pass": "pass_end",
    "finish": "encoder_finish",
}


def phase(name: str) -> Callable[[Record], bool]:
    """Wanted: a phase of one dispatch (of ``names.PHASE_ORDER``), or their ``total``."""
    return titled("timeline", f"phase {_PHASES.get(name, name)}")
