"""Which shape of the matrix-vector kernel an adapter likes: a measured table, the user's own measurements, a rule.

``tuned.json`` beside this file holds what was measured on the machines of the project; ``torch-webgpu tune`` adds
measurements of the user's adapter to a file in the cache folder, and those count more. Shapes without a close relative in
either get a shape by rule.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .. import disk_cache
from ..runtime import target

SHIPPED = Path(__file__).parent / "tuned.json"
_NEAR = 1.01  # a relative is within a factor of 2 in N and in K
_RULE_INVOCATIONS = 1 << 16  # enough to fill a large GPU
_WORTH_FIXING = 1 << 22  # weights; for fewer, putting x into fixed point takes longer than it saves
_LOADS = 8  # blocks in flight an invocation, by rule
#: Elements that an invocation reads at once (four words), by kind of weights.
BLOCK = {"float32": 4, "float16": 8, "bfloat16": 8, "int8": 16, "int4": 32}


@dataclass(frozen=True, order=True)
class Choice:
    """The shape of a matrix-vector kernel.

    Attributes:
        rows: rows of the weights that a team of invocations computes.
        lanes: invocations of a team, a power of two; beyond the subgroup size K is split over subgroups.
        workgroup: invocations of a workgroup, a power of two and at least ``lanes``.
        unroll: blocks of four words that an invocation reads of each row before it uses the first of them.
        stage: whether x is put in workgroup memory first.
        fixed: whether quantised weights meet a staged x of 16 bits a value as integers; needs ``stage``.
    """

    rows: int = 1
    lanes: int = 32
    workgroup: int = 128
    unroll: int = 1
    stage: bool = False
    fixed: bool = False

    def __post_init__(self) -> None:
        powers = all(n > 0 and n & (n - 1) == 0 for n in (self.lanes, self.workgroup))
        rows = 1 <= self.rows <= 8 or self.rows in (10, 12, 14, 16)  # odd ones may have to be doubled
        if not powers or self.lanes > self.workgroup or not rows or not 1 <= self.unroll <= 16 or self.fixed > self.stage:
            raise ValueError(f"not a shape of the matrix-vector kernel: {self}")

    def __str__(self) -> str:
        staged = ", fixed point" if self.fixed else ", staged" if self.stage else ""
        return f"{self.rows} rows, {self.lanes} lanes of {self.workgroup}, unroll {self.unroll}{staged}"


@dataclass(frozen=True)
class Entry:
    """One line of the table: the best choice for a product on an adapter.

    Attributes:
        adapter: part of the adapter's name in lower case, ``cpu`` for any rasteriser, or empty for any GPU.
        implementation: ``wgpu``, ``dawn``, or empty for both.
        kind: kind of weights (``float32``, ``float16``, ``bfloat16``, ``int8``, ``int4``).
        streams: matrices multiplied in one launch.
        m: rows of x.
    """

    adapter: str
    implementation: str
    kind: str
    n: int
    k: int
    streams: int
    m: int
    choice: Choice

    def to_json(self) -> dict[str, Any]:
        """As it stands in the file."""
        return asdict(self)

    @staticmethod
    def from_json(value: dict[str, Any]) -> Entry:
        """Raises KeyError, TypeError or ValueError on what is no entry."""
        choice = value["choice"]
        numbers = {name: int(value[name]) for name in ("n", "k", "streams", "m")}
        if min(numbers.values()) < 1 or value["kind"] not in BLOCK:
            raise ValueError(f"not an entry: {value}")
        sizes = {name: int(choice[name]) for name in ("rows", "lanes", "workgroup", "unroll")}
        shape = Choice(**sizes, stage=bool(choice["stage"]), fixed=bool(choice.get("fixed")))
        return Entry(str(value["adapter"]), str(value["implementation"]), str(value["kind"]), choice=shape, **numbers)

    @property
    def key(self) -> tuple[Any, ...]:
        """What a newer measurement replaces."""
        return self.adapter, self.implementation, self.kind, self.n, self.k, self.streams, self.m


def user_file() -> Path:
    """Where ``torch-webgpu tune`` keeps its measurements: ``torch_webgpu/matvec.json`` in the user's cache folder."""
    return disk_cache.user_folder() / "matvec.json"


def read(path: Path) -> list[Entry]:
    """Entries of a file; a file that is missing has none, and one that cannot be read is ignored with a warning."""
    try:
        return [Entry.from_json(value) for value in json.loads(path.read_text())["entries"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as e:
        warnings.warn(f"{path} is no table of kernel shapes and is ignored ({e}); delete it, or tune again", stacklevel=2)
        return []


def write(path: Path, entries: Iterable[Entry]) -> None:
    """Adds entries to a file, in place of older ones of the same products, and makes them count from now on.

    The file is replaced as a whole, so that a reader beside this process never sees half of it.
    """
    merged = {entry.key: entry for entry in (*read(path), *entries)}
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"  {json.dumps(merged[key].to_json())}" for key in sorted(merged))
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(f'{{"entries": [\n{lines}\n]}}\n')
    temporary.replace(path)
    forget()


def forget() -> None:
    """Reads the files again at the next choice."""
    _table.cache_clear()
    _choose.cache_clear()


def adapter_name() -> str:
    """The target's adapter as entries name it: its own name in lower case, without the driver's remarks in brackets."""
    adapter = target().adapter
    return adapter.name.split("(")[0].strip().lower() or f"nameless {adapter.kind}"


Who = tuple[str, str, str]  # an adapter's name, its kind, the implementation


@cache
def _table(who: Who) -> tuple[list[Entry], list[Entry]]:
    """The user's and the shipped entries that are about an adapter, the present target's."""
    name, kind, implementation = who[0].lower(), *who[1:]

    def about(entry: Entry) -> bool:
        by_class = kind == "cpu" if entry.adapter == "cpu" else kind != "cpu" if not entry.adapter else False
        ours = by_class or (entry.adapter != "" and entry.adapter in name) or entry.adapter == adapter_name()
        return ours and entry.implementation in ("", implementation)

    return [e for e in read(user_file()) if about(e)], [e for e in read(SHIPPED) if about(e)]


def counts() -> dict[str, int]:
    """How many measured shapes are known for the target's adapter: the user's ``own``, and ``shipped`` ones."""
    own, shipped = _table(_who())
    return {"own": len(own), "shipped": len(shipped)}


def choose(kind: str, n: int, k: int, streams: int = 1, m: int = 1) -> Choice:
    """The shape for weights [n, k] of a kind, ``streams`` of them, and m rows of x, on the target's adapter."""
    return _choose(_who(), kind, n, k, streams, m)


def _who() -> Who:
    adapter = target().adapter
    return adapter.name, adapter.kind, adapter.implementation


@cache
def _choose(who: Who, kind: str, n: int, k: int, streams: int, m: int) -> Choice:
    for entries in _table(who):
        best = min((e for e in entries if e.kind == kind), key=lambda e: _distance(e, n, k, streams, m), default=None)
        if best is not None and _distance(best, n, k, streams, m)[0] <= _NEAR:
            return best.choice
    return rule(kind, n, k, streams, m)


def _distance(entry: Entry, n: int, k: int, streams: int, m: int) -> tuple[float, float, int, int]:
    """How far an entry is from a product; what is measured for this adapter and implementation is nearer."""
    far = math.inf if (entry.streams, entry.m) != (streams, m) else 0.0
    dn, dk = abs(math.log2(entry.n / n)), abs(math.log2(entry.k / k))
    return max(dn, dk, far), dn + dk, -len(entry.adapter), -len(entry.implementation)


def is_quantised(kind: str) -> bool:
    """Whether weights of a kind are integers with scales."""
    return kind in ("int8", "int4")


def balanced(blocks: int, lanes: int, most: int) -> int:
    """How many blocks an invocation reads at a time: at most ``most``, in equal steps."""
    each = -(-blocks // lanes)
    return -(-each // -(-each // max(1, most)))


def rule(kind: str, n: int, k: int, streams: int = 1, m: int = 1) -> Choice:
    """A sane shape without measurements.

    On a GPU: enough invocations to fill it, first by fewer rows a team, then by splitting K further; then as many loads
    in flight as registers allow. Products of quantised weights are integer products, whose blocks are long: fewer lanes
    share a row. A rasteriser runs invocations one after the other, where sharing a row costs more than it brings.
    """
    if target().adapter.kind == "cpu":
        return Choice(rows=2 if streams * m == 1 else 1, lanes=1, workgroup=64, unroll=1)
    blocks = max(1, k // BLOCK[kind])
    rows = max(1, min(4, 8 // (streams * m)))
    if is_quantised(kind) and n * k >= _WORTH_FIXING:
        rows, lanes = max(1, min(rows, n >> 12)), 8
        while lanes < min(256, blocks // 2) and n // rows * lanes < _RULE_INVOCATIONS // 2:
            lanes *= 2
        return Choice(rows, lanes, max(lanes, 128), balanced(blocks, lanes, 3), stage=True, fixed=True)
    lanes = 32
    while rows > 1 and n // rows * lanes < _RULE_INVOCATIONS:
        rows //= 2
    while lanes < min(256, blocks // 2) and n // rows * lanes < _RULE_INVOCATIONS:
        lanes *= 2
    while lanes > 4 and blocks * 2 <= lanes:
        lanes //= 2
    unroll = balanced(blocks, lanes, _LOADS // (rows * streams * min(m, 2)))
    return Choice(rows, lanes, max(lanes, 128), unroll)
