"""What a report consists of, whatever it is written as: chapters of text, tables and plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..stats import Interval, summarise

_UNITS = {"us": "µs", "tokens/s": "tok/s", "ratio": "×", "count": "", "bytes": "B"}
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval.

    Attributes:
        n: samples it comes from.
        unit: one of the result file's, or a text.
    """

    value: float
    low: float
    high: float
    n: int
    unit: str

    @classmethod
    def of(cls, samples: Sequence[float], unit: str, per: float = 1) -> Estimate:
        """The median of samples, each divided by ``per``, with its bootstrap interval."""
        s = summarise(samples)
        return cls(s.median / per, s.median_ci.low / per, s.median_ci.high / per, s.n, unit)

    @classmethod
    def within(cls, value: float, interval: Interval, n: int, unit: str) -> Estimate:
        """A value whose interval was worked out elsewhere."""
        return cls(value, interval.low, interval.high, n, unit)

    @property
    def text(self) -> str:
        """The value alone."""
        return quantity(self.value, self.unit)

    @property
    def detail(self) -> str:
        """Interval and count."""
        if self.n < 2:
            return "one sample"
        digits = _digits(max(abs(self.low), abs(self.high)), self.high - self.low)
        scale = _byte_scale(self.value)[0] if self.unit == "bytes" else 1
        return f"{number(self.low / scale, digits)} to {number(self.high / scale, digits)}, n = {self.n}"


def number(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, thousands apart, and no exponent."""
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(places, 6)}f}".replace(",", "\u202f")
    return text.replace("-", "−")


def quantity(value: float, unit: str) -> str:
    """A number with its unit."""
    if unit == "bytes":
        scale, name = _byte_scale(value)
        return f"{number(value / scale)} {name}"
    if unit == "count":
        return f"{value:,.0f}".replace(",", "\u202f") if value == round(value) else number(value)
    name = _UNITS.get(unit, unit)
    return f"{number(value)}{'' if name == '×' else ' '}{name}".rstrip()


def p_value(p: float) -> str:
    """A probability as papers write it."""
    if math.isnan(p):
        return "–"
    return "<\u00a00.001" if p < 0.001 else f"{p:.3f}"


def _digits(size: float, width: float) -> int:
    """As many digits as tell the two ends apart, between three and six."""
    if width <= 0 or size <= 0:
        return 3
    return min(6, max(3, 2 + math.floor(math.log10(size)) - math.floor(math.log10(width))))


def _byte_scale(value: float) -> tuple[float, str]:
    power = min(len(_BYTES) - 1, int(math.log(max(abs(value), 1), 1024)))
    return 1024.0**power, _BYTES[power]


@dataclass(frozen=True)
class Cell:
    """Of a table.

    Attributes:
        detail: shown smaller below.
        tone: how it is to be read.
        label: of a row or column, a header.
    """

    text: str
    detail: str = ""
    tone: Literal["", "good", "bad", "quiet"] = ""

    @classmethod
    def of(cls, estimate: Estimate | None, tone: Literal["", "good", "bad", "quiet"] = "") -> Cell:
        """An estimate with interval and count; a dash where there is none."""
        return cls("–", tone="quiet") if estimate is None else cls(estimate.text, estimate.detail, tone)


@dataclass
class Table:
    """A table whose first column names the row.

    Attributes:
        numeric: columns from this one on are set flush right.
    """

    caption: str
    columns: Sequence[str]
    rows: list[list[Cell | str]] = field(default_factory=list)
    note: str = ""
    numeric: int = 1

    def add(self, *cells: Cell | str | Estimate | None) -> None:
        """Adds a row; ValueError where its length is not the table's."""
        if len(cells) != len(self.columns):
            raise ValueError(f"a row of {len(cells)} cells in a table of {len(self.columns)} columns")
        self.rows.append([c if isinstance(c, (Cell, str)) else Cell.of(c) for c in cells])


@dataclass(frozen=True)
class Plot:
    """A picture; ``alt`` says in words what it shows."""

    caption: str
    svg: str
    alt: str


@dataclass(frozen=True)
class Text:
    """A paragraph.

    Attributes:
        kind: ``command`` is something to run.
    """

    text: str
    kind: Literal["plain", "note", "warning", "command"] = "plain"


@dataclass(frozen=True)
class Answer:
    """Of a disagreement of the paper.

    Attributes:
        verdict: in a few words; empty where the files do not answer it.
        command: what would answer it, where they do not.
    """

    number: int
    claim: str
    paper: str
    verdict: str
    found: Sequence[str] = ()
    command: str = ""
    table: Table | None = None


Block = Table | Plot | Text | Answer


@dataclass
class Chapter:
    """A heading with what follows."""

    key: str
    title: str
    lead: str = ""
    blocks: list[Block] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.blocks)


@dataclass(frozen=True)
class Headline:
    """A figure of the first screen.

    Attributes:
        others: the same of further targets, and what to set it against.
    """

    label: str
    value: str
    unit: str
    detail: str
    others: Sequence[str] = ()
    paper: str = ""


@dataclass
class Document:
    """A report."""

    title: str
    summary: str
    headlines: list[Headline]
    chapters: list[Chapter]
    warnings: list[str]
    made: str
    share: Plot | None = None
