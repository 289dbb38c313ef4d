"""An explanation as a Graphviz drawing: launches, and the buffers that flow between them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..recipe import REF_ERROR, REF_OUTPUT, REF_TEMP
from .explanation_table import amount, where

if TYPE_CHECKING:
    from .explanation import GraphPlan
    from .plan import Binding

NO_DOT = (
    "Graphviz's `dot` draws the SVG and is not installed: get it with `apt-get install graphviz`, `brew install graphviz` "
    "or `winget install graphviz`. The text of the graph is in {path}."
)


def write_graph(plans: Sequence[GraphPlan], path: Path) -> list[Path]:
    """See ``Explanation.write_graph``."""
    if path.suffix not in (".dot", ".gv", ".svg"):
        raise ValueError(f"{path} is neither .dot, .gv nor .svg")
    source = path.with_suffix(".dot") if path.suffix == ".svg" else path
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(dot_text(plans))
    if path.suffix != ".svg":
        return [source]
    dot = shutil.which("dot")
    if dot is None:
        raise RuntimeError(NO_DOT.format(path=source))
    done = subprocess.run([dot, "-Tsvg", "-o", str(path), str(source)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{dot} failed on {source}: {done.stderr.strip()}")
    return [source, path]


def dot_text(plans: Sequence[GraphPlan]) -> str:
    """The plans in Graphviz's language, one cluster each."""
    lines = ["digraph plans {", '  node [shape=box, style=rounded, fontname="sans-serif", fontsize=10];']
    lines.append('  edge [fontname="sans-serif", fontsize=8];')
    for number, plan in enumerate(plans):
        lines.append(f"  subgraph cluster_{number} {{")
        lines.append(f"    label={_quoted(plan.graph)};")
        lines += [f"    {line}" for line in _nodes(plan, f"p{number}_")]
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


MOST_EDGES = 4  # from one node; what more launches read (masks, tables of angles) is named in their boxes


def _flow(plan: GraphPlan) -> Iterator[tuple[int, str, Binding]]:
    """For each launch what it reads, and the node that it has it from: a launch's number, or an input."""
    writers: list[tuple[Binding, int]] = []  # of ranges, the newest last
    for i, d in enumerate(plan.plan.dispatches):
        for b in d.bindings:
            if b.written or b.ref == REF_ERROR:
                continue
            overlapping = (
                place
                for w, place in reversed(writers)
                if w.ref == b.ref and w.start < b.start + b.size and b.start < w.start + w.size
            )
            source = next(overlapping, None)
            if source is not None or b.ref < REF_OUTPUT:
                yield i, str(source) if source is not None else f"in{b.ref}", b
        writers += [(b, i) for b in d.bindings if b.written and b.ref != REF_ERROR]


def _nodes(plan: GraphPlan, prefix: str) -> Iterator[str]:
    flow = list(_flow(plan))
    readers = Counter(source for _, source, _ in flow)
    notes: dict[int, list[str]] = defaultdict(list)
    inputs = {}
    for i, source, b in flow:
        name = plan.label(b, offsets=False) if source.startswith("in") else f"result of {source}"
        if readers[source] > MOST_EDGES:
            notes[i].append(f"{b.name}: {name}")
            continue
        if source.startswith("in"):
            inputs[source] = name
        yield f"{prefix}{source} -> {prefix}{i} [label={_quoted(amount(b.size))}];"
    for source, name in inputs.items():
        yield f"{prefix}{source} [label={_quoted(name)}, shape=ellipse, color=gray];"
    for i, d in enumerate(plan.plan.dispatches):
        label = "\n".join(filter(None, (f"{i}: {d.name}", d.kernel, where(d.modules), *notes[i])))
        yield f"{prefix}{i} [label={_quoted(label)}];"
    last = {b.ref: i for i, d in enumerate(plan.plan.dispatches) for b in d.bindings if b.written and b.ref < REF_TEMP}
    for ref, place in last.items():
        name = f"output {ref - REF_OUTPUT}" if ref >= REF_OUTPUT else f"{plan.tensors.get(ref, ref)} (written)"
        yield f"{prefix}out{ref} [label={_quoted(name)}, shape=ellipse];"
        yield f"{prefix}{place} -> {prefix}out{ref};"
