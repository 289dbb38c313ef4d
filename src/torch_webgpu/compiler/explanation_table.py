"""An explanation as tables for the terminal."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from ..recipe import REF_OUTPUT
from .plan import Dispatch

if TYPE_CHECKING:
    from .explanation import Explanation, GraphPlan

_NUMBER = re.compile(r"(?<=[.\[])\d+(?=[.\]]|$)")  # of a layer, in a module's path
_NARROWEST = 100


def amount(count: int) -> str:
    """A number of bytes."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} GiB"


def where(modules: Sequence[str]) -> str:
    """Module paths in short: ``layers.3.{norm, mlp.up}``."""
    if not modules:
        return ""
    if len(modules) == 1:
        return modules[0]
    parts = [m.split(".") for m in modules]
    shared = 0
    while all(len(p) > shared for p in parts) and len({p[shared] for p in parts}) == 1:
        shared += 1
    prefix, rest = ".".join(parts[0][:shared]), [".".join(p[shared:]) for p in parts if len(p) > shared]
    if len(rest) == 1:
        return f"{prefix}.{rest[0]}" if prefix else rest[0]
    listed = "{" + ", ".join(rest) + "}"
    return f"{prefix}.{listed}" if prefix else listed


def _ranges(numbers: Sequence[int]) -> str:
    """``0–3, 5``."""
    found: list[list[int]] = []
    for n in sorted(set(numbers)):
        if found and n == found[-1][1] + 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in found)


@dataclass
class Row:
    """Equal launches.

    Attributes:
        places: their numbers in the plan.
        first: one of them.
        module, buffers: with a range in place of the layer's number.
    """

    places: list[int]
    first: Dispatch
    module: str
    buffers: list[str]


def rows(plan: GraphPlan, fold: bool) -> Iterator[Row]:
    """The launches of a plan; with ``fold`` those of one kernel, size and role in different layers are one row."""
    groups: dict[object, list[int]] = {}
    for i, d in enumerate(plan.plan.dispatches):
        key: object = i
        if fold:
            bound = tuple((_NUMBER.sub("*", plan.label(b, offsets=False)), b.written) for b in d.bindings)
            key = (d.pipeline, d.name, d.groups, d.read, d.written, _NUMBER.sub("*", where(d.modules)), bound)
        groups.setdefault(key, []).append(i)
    for places in groups.values():
        members = [plan.plan.dispatches[i] for i in places]
        first = members[0]
        module = _merged([where(d.modules) for d in members])
        buffers = [_bound(plan, members, j) for j in range(len(first.bindings))]
        yield Row(places, first, module, buffers)


def _bound(plan: GraphPlan, members: Sequence[Dispatch], index: int) -> str:
    """What the launches of a row bind at a place; of a module's tensors the last two names."""
    labels = [plan.label(d.bindings[index], offsets=len(members) == 1) for d in members]
    binding = members[0].bindings[index]
    if binding.ref < REF_OUTPUT and len(parts := _merged(labels).split(".")) > 3:
        label = "…" + ".".join(parts[-2:])
    else:
        label = _merged(labels)
    return f"{'→' if binding.written else ''}{binding.name}: {label}"


def _merged(texts: Sequence[str]) -> str:
    """Texts that differ in layer numbers as one, with the numbers' range where one number alone differs."""
    numbers = [[int(n) for n in _NUMBER.findall(t)] for t in texts]
    columns = list(zip(*numbers, strict=True))
    ranges = [_ranges(c) for c in columns]
    varying = [set(c) for c in columns if len(set(c)) > 1]
    if len(set(map(frozenset, varying))) > 1:
        ranges = ["*" if len(set(c)) > 1 else str(c[0]) for c in columns]
    found = iter(ranges)
    return _NUMBER.sub(lambda _: next(found), texts[0])


def _table(plan: GraphPlan, fold: bool) -> Table:
    count = len(plan.plan.dispatches)
    table = Table(title=f"{plan.graph}: {count} dispatches", title_justify="left", header_style="bold", expand=False)
    table.add_column("#", justify="right")
    if fold:
        table.add_column("×", justify="right")
    for name in ("kernel", "computes", "module"):
        table.add_column(name, overflow="fold")
    for name in ("workgroups", "read", "written"):
        table.add_column(name, justify="right")
    table.add_column("buffers (→ written)", overflow="fold")
    for row in rows(plan, fold):
        d = row.first
        cells = [str(row.places[0]), *([str(len(row.places))] if fold else [])]
        cells += [d.kernel, d.name.replace("|", " | "), row.module, "×".join(map(str, d.groups)).removesuffix("×1×1")]
        cells += [amount(d.read), amount(d.written), ", ".join(row.buffers)]
        table.add_row(*(escape(c) for c in cells))
    return table


def _totals(e: Explanation) -> list[str]:
    dispatches = [d for p in e.plans for d in p.plan.dispatches]
    encoded = sum(p.encoded for p in e.plans)
    levels = ", ".join(f"{name} {'no plan' if n is None else n}" for name, n in e.levels.items())
    arenas = [a for p in e.plans for a in p.plan.arenas]
    peak, total = (sum(getattr(p.plan, name) for p in e.plans) for name in ("peak", "temporaries"))
    return [
        f"[bold]{e.dispatches} dispatches[/] (encoded by the native core: {encoded}), {len(e.pipelines)} pipelines, "
        f"{len(e.plans)} plans",
        f"captured: {e.captured} FX calls, {e.aten} ATen calls; dispatches by fusion level: {levels}",
        f"read {amount(sum(d.read for d in dispatches))}, written {amount(sum(d.written for d in dispatches))}, "
        f"weights {amount(e.weights)}",
        f"temporaries: {amount(sum(arenas))} in {len(arenas)} arenas; {amount(peak)} alive at once, {amount(total)} without "
        "sharing",
    ]


def render(e: Explanation) -> Group:
    """Tables, totals, and what did not become part of a plan."""
    lines = [f"{escape(e.device)}, fusion {e.fusion}", *_totals(e)]
    lines += [f"[yellow]graph break:[/] {escape(reason)}" for reason in e.breaks]
    lines += [f"[yellow]op by op:[/] {escape(graph)}: {escape(reason)}" for graph, reason in e.op_by_op]
    lines += [f"[yellow]on the CPU:[/] {escape(op)}, {count} times" for op, count in e.fallbacks.items()]
    if not e.breaks and not e.op_by_op and not e.fallbacks:
        lines.append("no graph breaks, no ops outside of the plans")
    return Group(*(_table(p, e.fold) for p in e.plans), *lines)


def text(e: Explanation) -> str:
    """The same as plain text, as wide as the terminal, at least 100 columns."""
    width = max(shutil.get_terminal_size((160, 24)).columns, _NARROWEST)
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(render(e))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip("\n")
