"""Plots as SVG that take their colours from the page, so that they are right in light and dark."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, StrMethodFormatter

from ..stats import Line
from .document import Estimate, number

#: Colours that stand for the page's own; nothing else draws with them.
INK, QUIET, RULE = "#0a0b01", "#0a0b02", "#0a0b03"
SERIES = tuple(f"#0a0b1{i}" for i in range(8))
_VARIABLES = {INK: "currentColor", QUIET: "var(--quiet)", RULE: "var(--rule)"} | {
    colour: f"var(--s{i + 1})" for i, colour in enumerate(SERIES)
}
_MARKERS = "osD^vPX*"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.edgecolor": RULE,
    "axes.labelcolor": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "text.color": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
}
_WIDTH = 5.2


@contextmanager
def _figure(height: float) -> Iterator[tuple[Figure, Axes]]:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure, figure.add_subplot()


def _svg(figure: Figure, key: str, alt: str) -> str:
    """The figure as an element for a page: no fixed size, colours by variable, names that no other plot has."""
    stream = io.StringIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": key}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{key}-\1"', text)
    text = re.sub(r'(xlink:href="|url\()#', rf"\1#{key}-", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(alt, quote=True)}"', 1)


@dataclass(frozen=True)
class Fitted:
    """Samples by n and the line through them."""

    label: str
    samples: Mapping[int, Sequence[float]]
    line: Line


def lines(key: str, fits: Sequence[Fitted], alt: str, unit: str = "µs") -> str:
    """Every sample over the number of dispatches, with the lines fitted."""
    with _figure(3.4) as (figure, axes):
        for i, fit in enumerate(fits):
            colour = SERIES[i % len(SERIES)]
            x = [n for n, samples in fit.samples.items() for _ in samples]
            y = [s for samples in fit.samples.values() for s in samples]
            axes.plot(x, y, _MARKERS[i % len(_MARKERS)], color=colour, markersize=3, alpha=0.45, markeredgewidth=0)
            ends = np.geomspace(min(fit.samples), max(fit.samples), 60)
            at = fit.line.intercept + fit.line.slope * ends
            axes.plot(ends[at > 0], at[at > 0], color=colour, label=fit.label)
        axes.set(xscale="log", yscale="log", xlabel="dispatches", ylabel=f"time until all are done, {unit}")
        _legend(figure, axes, len(fits))
        return _svg(figure, key, alt)


def residuals(key: str, fits: Sequence[Fitted], alt: str) -> str:
    """What the line leaves of each median, in percent of it."""
    with _figure(2.6) as (figure, axes):
        axes.axhline(0, color=INK, linewidth=0.8)
        for i, fit in enumerate(fits):
            medians = {n: float(np.median(s)) for n, s in fit.samples.items()}
            y = [100 * r / medians[n] if medians[n] else 0 for n, r in fit.line.residuals.items()]
            marker = f"{_MARKERS[i % len(_MARKERS)]}-"
            axes.plot(
                list(fit.line.residuals),
                y,
                marker,
                color=SERIES[i % len(SERIES)],
                markersize=4,
                linewidth=0.8,
                label=fit.label,
            )
        axes.set(xscale="log", xlabel="dispatches", ylabel="median above the line, %")
        _legend(figure, axes, len(fits))
        return _svg(figure, key, alt)


def stacked(
    key: str,
    bars: Mapping[str, Mapping[str, float]],
    alt: str,
    unit: str = "µs",
    colours: Mapping[str, int] | None = None,
) -> str:
    """Horizontal bars of parts; negative parts, which noise makes, are drawn as nothing.

    Args:
        colours: numbers of the parts' colours, in the order of the parts from the left, so that several plots agree; the
            bars' own order unless given.
    """
    found = list(dict.fromkeys(part for bar in bars.values() for part in bar))
    colours = colours or {part: i % len(SERIES) for i, part in enumerate(found)}
    parts = [part for part in colours if part in found]
    with _figure(0.9 + 0.42 * len(bars) + 0.2 * ((len(parts) + 2) // 3)) as (figure, axes):
        places = np.arange(len(bars))[::-1]
        left = np.zeros(len(bars))
        total = max(sum(max(v, 0) for v in bar.values()) for bar in bars.values())
        for part in parts:
            widths = np.array([max(bar.get(part, 0), 0) for bar in bars.values()])
            axes.barh(places, widths, left=left, color=SERIES[colours[part]], height=0.62, label=part)
            for y, start, width in zip(places, left, widths, strict=True):
                if width > 0.09 * total:
                    axes.text(start + width / 2, y, number(width, 2), ha="center", va="center", color="#ffffff", fontsize=8)
            left += widths
        axes.set_yticks(places, [_wrapped(name) for name in bars])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(unit)
        _legend(figure, axes, len(parts), columns=3)
        return _svg(figure, key, alt)


def dots(
    key: str,
    estimates: Mapping[str, Estimate],
    alt: str,
    label: str,
    paper: Mapping[str, tuple[float, float]] | None = None,
    log: bool = False,
    reference: float | None = None,
) -> str:
    """One value a row with its interval, and the paper's range where there is one."""
    tallest = max(_wrapped(name).count("\n") + 1 for name in estimates)
    with _figure(0.7 + (0.16 + 0.15 * tallest) * len(estimates) + (0.25 if paper else 0)) as (figure, axes):
        places = np.arange(len(estimates))[::-1]
        for y, (name, e) in zip(places, estimates.items(), strict=True):
            if paper and name in paper:
                low, high = paper[name]
                axes.plot([low, high], [y, y], color=SERIES[1], linewidth=7, alpha=0.35, solid_capstyle="round")
            spread = [[max(e.value - e.low, 0)], [max(e.high - e.value, 0)]]
            axes.errorbar(e.value, y, xerr=spread, fmt="o", color=SERIES[0], capsize=3, markersize=5)
        if paper:
            axes.plot([], [], color=SERIES[1], linewidth=7, alpha=0.35, label="the paper, nearest platform")
            axes.errorbar([], [], xerr=[], fmt="o", color=SERIES[0], label="measured, 95 % interval")
            _legend(figure, axes, 2)
        if reference is not None:
            axes.axvline(reference, color=INK, linewidth=0.8, linestyle="--")
        if log:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.minorticks_off()
        else:
            axes.set_xlim(left=0)
        axes.set_ylim(-0.6, len(estimates) - 0.4)
        axes.set_yticks(places, [_wrapped(name) for name in estimates])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(label)
        return _svg(figure, key, alt)


def curves(key: str, series: Mapping[str, Mapping[float, Estimate]], alt: str, x: str, y: str, log: bool = True) -> str:
    """Values with intervals over a parameter."""
    with _figure(3.0) as (figure, axes):
        for i, (name, points) in enumerate(series.items()):
            at = sorted(points)
            values = [points[p].value for p in at]
            spread = [
                [max(points[p].value - points[p].low, 0) for p in at],
                [max(points[p].high - points[p].value, 0) for p in at],
            ]
            marker = f"{_MARKERS[i % len(_MARKERS)]}-"
            axes.errorbar(
                at, values, yerr=spread, fmt=marker, color=SERIES[i % len(SERIES)], capsize=2, markersize=4, label=name
            )
        ticks = sorted({p for points in series.values() for p in points})
        if log and ticks[0] > 0:
            axes.set_xscale("log")
            axes.minorticks_off()
        axes.set_xticks(ticks, [f"{p:g}" for p in ticks])
        axes.set(xlabel=x, ylabel=y)
        axes.set_ylim(bottom=0)
        _legend(figure, axes, len(series))
        return _svg(figure, key, alt)


def _legend(figure: Figure, axes: Axes, count: int, columns: int = 2) -> None:
    """Below the axes, so that it hides nothing."""
    if count > 1 or axes.get_legend_handles_labels()[1]:
        longest = max((len(label) for label in axes.get_legend_handles_labels()[1]), default=0)
        figure.legend(loc="outside lower center", ncols=1 if longest > 34 else min(columns, max(count, 1)))


def _wrapped(text: str, width: int = 26) -> str:
    """Broken at a space, so that names do not eat the plot."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + len(word) + 1 > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line])
