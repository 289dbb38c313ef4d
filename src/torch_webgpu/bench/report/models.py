"""The chapters on whole models: language models beside CUDA, vision models, and energy."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .. import paper
from ..names import ENERGY, IDLE, MEMORY, POWER, RATE, TOKEN, TTFT
from ..results import Results, Series, Source
from . import plots
from .document import Cell, Chapter, Estimate, Plot, Table, Text, number

_TITLES = {
    RATE: "tokens a second", TTFT: "first token", TOKEN: "each further token", MEMORY: "memory", ENERGY: "energy a token",
    POWER: "power at work", IDLE: "idle power", "wall": "time",
}  # fmt: skip
#: Parameters that say how a model is computed, but not what.
_HOW = frozenset(("fusion", "cache", "mode", "replay", "wait"))
_FLOATS = {"float32": "fp32", "float16": "fp16"}


@dataclass
class Variant:
    """One way to run one model on one source, with all that was measured of it."""

    source: Source
    workload: str
    method: str
    setting: tuple[tuple[str, Any], ...]
    metrics: dict[str, Series] = field(default_factory=dict)

    def estimate(self, metric: str) -> Estimate | None:
        """The median of a metric."""
        s = self.metrics.get(metric)
        return Estimate.of(s.samples, s.now.unit) if s else None

    def value(self, name: str) -> Any:
        """A parameter, None where it has none of the name."""
        return dict(self.setting).get(name)

    @property
    def what(self) -> dict[str, Any]:
        """The parameters that say what is computed; none where one says there is none of something."""
        return {k: x for k, x in self.setting if k not in _HOW and x not in (None, "", "none", False)}

    @property
    def how(self) -> str:
        """Method and parameters."""
        return ", ".join([self.method, *(f"{k} {v}" for k, v in self.setting)])

    @property
    def notes(self) -> list[str]:
        """What the measurements say of themselves, each once."""
        return list(dict.fromkeys(note for s in self.metrics.values() for note in s.now.notes))

    @property
    def interrupted(self) -> bool:
        """Whether only interrupted runs have it."""
        return any(s.interrupted for s in self.metrics.values())


def variants(results: Results, experiment: str) -> list[Variant]:
    """All of an experiment, the best sources first."""
    found: dict[Any, Variant] = {}
    for s in results.find(experiment):
        setting = tuple(sorted(s.now.parameters.items()))
        key = s.source, s.now.workload, s.now.method, setting
        found.setdefault(key, Variant(*key)).metrics[s.now.metric] = s
    return list(found.values())


def llm_chapter(results: Results) -> Chapter:
    """Every variant with all its metrics, and each model beside CUDA."""
    chapter = Chapter(
        "llm",
        "Language models",
        "Tokens a second while decoding at batch 1, the time to the first token, the time of each further one, memory. Only "
        "runs of the same model, dtype and prompt are set against each other.",
    )
    found = variants(results, "llm")
    if not found:
        return chapter
    beside = _beside_cuda(results, found)
    if beside.rows:
        chapter.blocks.append(beside)
    chapter.blocks += _rates(results, found)
    for workload in dict.fromkeys(v.workload for v in found):
        chapter.blocks.append(_all(results, [v for v in found if v.workload == workload], workload, published_rate))
    return chapter


def published_rate(v: Variant) -> paper.Published | None:
    """Tokens a second that the paper has for the model, on the platform nearest to the target."""
    size = re.search(r"\b(0\.5|1\.5)B", v.workload)
    if "Qwen2.5" not in v.workload or not size:
        return None
    start, cuda = f"Qwen2.5-{size[1]}B", v.source.target.kind == "cuda"
    fused = "unfused" if v.value("fusion") == "none" else "fused"
    floats = _FLOATS.get(str(v.value("dtype")), "")
    starts = (f"{start} {floats}", start) if v.source.target.kind in ("cuda", "cpu", "mps") else (f"{start} {fused} fp32",)

    def wanted(r: paper.Record) -> bool:
        return r.experiment == "e2e" and r.metric == "tok/s" and r.what.startswith(starts[0])

    found = paper.nearest(v.source.target, wanted)
    return found if found or not cuda else paper.nearest(v.source.target, paper.titled("e2e", starts[-1], metric="tok/s"))


def beside(v: Variant, found: list[Variant]) -> Variant | None:
    """The fastest CUDA variant of the same thing on the same machine; None where there is none."""
    rivals = [r for r in found if r.source.target.kind == "cuda" and _rate(r) > 0 and _comparable(v, r)]
    return max(rivals, key=_rate, default=None)


def _comparable(v: Variant, r: Variant) -> bool:
    """Whether two differ only in how they compute: not in machine, model, dtype, quantisation, prompt, length."""
    return (v.workload, v.source.machine, v.what) == (r.workload, r.source.machine, r.what)


def _rate(v: Variant) -> float:
    e = v.estimate(RATE)
    return e.value if e else 0.0


def best(found: list[Variant]) -> list[Variant]:
    """The fastest variant of each source and of what is computed, CUDA left out."""
    chosen: dict[Any, Variant] = {}
    for v in found:
        key = v.source, v.workload, tuple(v.what.items())
        if RATE in v.metrics and v.source.target.kind != "cuda" and (key not in chosen or _rate(v) > _rate(chosen[key])):
            chosen[key] = v
    return list(chosen.values())


def _beside_cuda(results: Results, found: list[Variant]) -> Table:
    table = Table(
        "Decoding beside CUDA, same machine, model and dtype",
        ["model", "target", "fastest variant", "tokens a second", "CUDA’s fastest", "of CUDA", "the paper"],
        numeric=3,
    )
    for v in best(found):
        rival = beside(v, found)
        share = "–"
        if rival is not None:
            share = f"{100 * _rate(v) / _rate(rival):.0f} %"
        cell = Cell.of(rival.estimate(RATE)) if rival else Cell("not measured", tone="quiet")
        if rival:
            cell = Cell(cell.text, f"{rival.how}; {cell.detail}")
        published = published_rate(v)
        paper_cell = Cell(published.value, published.platform, "quiet") if published else "–"
        table.add(v.workload, results.label(v.source), v.how, v.estimate(RATE), cell, share, paper_cell)
    return table


def _rates(results: Results, found: list[Variant]) -> list[Plot]:
    pictures = []
    for i, workload in enumerate(dict.fromkeys(v.workload for v in found)):
        rows = {}
        for v in found:
            e = v.estimate(RATE)
            if v.workload == workload and e is not None:
                rows[f"{results.label(v.source)}: {_short(v)}"] = e
        if len(rows) > 1:
            shown = dict(sorted(rows.items(), key=lambda r: -r[1].value)[:16])
            alt = "; ".join(f"{name} {e.text}" for name, e in shown.items())
            pictures.append(Plot(f"{workload}: decoding", plots.dots(f"llm{i}", shown, alt, "tokens a second"), alt))
    return pictures


def _short(v: Variant) -> str:
    chosen = [str(v.value(k)) for k in ("dtype", "quantize") if v.value(k)]
    if v.value("fusion"):
        chosen.append(f"fusion {v.value('fusion')}")
    if v.value("cache"):
        chosen.append(f"{v.value('cache')} cache")
    return ", ".join([v.method, *chosen])


def _all(
    results: Results,
    found: list[Variant],
    title: str,
    published: Callable[[Variant], paper.Published | None] = lambda v: None,
) -> Table:
    """One row a variant, one column a metric."""
    present = dict.fromkeys(metric for v in found for metric in v.metrics)
    metrics = [m for m in _TITLES if m in present] + [m for m in present if m not in _TITLES]
    table = Table(
        f"{title}: all variants", ["target", "variant", *(_TITLES.get(m, m) for m in metrics), "the paper"], numeric=2
    )
    notes: dict[str, None] = {}
    for v in found:
        notes |= dict.fromkeys(v.notes)
        p = published(v)
        name = Cell(results.label(v.source), "interrupted run" if v.interrupted else "")
        table.add(name, v.how, *(v.estimate(m) for m in metrics), Cell(p.value, p.platform, "quiet") if p else "–")
    table.note = " ".join(f"{note.rstrip('.')}." for note in notes)
    return table


def vision_chapter(results: Results) -> Chapter:
    """Every vision model."""
    chapter = Chapter(
        "vision",
        "Vision models",
        "Whole models, not chains of synthetic dispatches as in the paper, whose figures stand beside for scale.",
    )
    found = variants(results, "vision")
    for workload in dict.fromkeys(v.workload for v in found):
        chapter.blocks.append(_all(results, [v for v in found if v.workload == workload], workload, _published_vision))
    return chapter


def _published_vision(v: Variant) -> paper.Published | None:
    name = v.workload.lower()
    dispatch = {
        "vit": ("ViT", "ViT-Base 12 layers ("),
        "dino": ("ViT", "ViT-Base 12 layers ("),
        "unet": ("UNet", "Small unfused"),
    }
    key = next((k for k in dispatch if k in name), None)
    experiment, start = dispatch[key] if key else ("CNN", "ResNet50-early 64ch 56x56 unfused")
    return paper.nearest(v.source.target, paper.titled(experiment, start, metric="mean"))


def power_chapter(results: Results) -> Chapter:
    """Joules a token, or why there are none."""
    chapter = Chapter(
        "power",
        "Energy",
        "Energy counters read around whole decodes; what the device takes at idle, measured just before, is subtracted and "
        "stated. Nothing is estimated from a rated power.",
    )
    found = variants(results, "power")
    for workload in dict.fromkeys(v.workload for v in found):
        chapter.blocks.append(_all(results, [v for v in found if v.workload == workload], workload, _published_energy))
    for v in without_energy(found):
        reason = " ".join(v.notes) or "The file does not say why."
        chapter.blocks.append(Text(f"{results.label(v.source)}, {v.how}: no energy was measured. {reason}", "warning"))
    return chapter


def without_energy(found: list[Variant]) -> list[Variant]:
    """Those for which no meter answered."""
    measured = {(v.source, v.workload, v.method) for v in found if ENERGY in v.metrics}
    return [v for v in found if (v.source, v.workload, v.method) not in measured]


def _published_energy(v: Variant) -> paper.Published | None:
    starts = ("CUDA 0.5B",) if v.source.target.kind == "cuda" else ("WebGPU W / fused e2e",)
    return paper.nearest(v.source.target, paper.titled("power", *starts, metric="energy"))


def energy(v: Variant) -> str:
    """J a token with idle power, in words."""
    e, idle = v.estimate(ENERGY), v.estimate(IDLE)
    if e is None:
        return "no energy measured"
    below = f" above {number(idle.value)} W at idle" if idle else ""
    return f"{number(e.value)} J a token{below}"
