"""An explanation as a Graphviz drawing: launches, and the buffers that flow between them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..recipe import REF_ERROR, REF_OUTPUT, REF_TEMP
from .explain_table import amount, where

if TYPE_CHECKING:
    from .explain import GraphPlan
    from .plan import Binding

NO_DOT = (
    "Graphviz's `dot` draws the SVG and is not installed: get it with `apt-get install graphviz`, `brew install graphviz` or "
    "`winget install graphviz`. The text of the graph is in {path}."
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


def _nodes(plan: GraphPlan, prefix: str) -> Iterator[str]:
    writers: list[tuple[Binding, int]] = []  # the last launches to write a range, newest last
    drawn: set[int] = set()

    def origin(b: Binding) -> str:
        """The node that a launch has its operand from."""
        for written, place in reversed(writers):
            if written.ref == b.ref and written.start < b.start + b.size and b.start < written.start + written.size:
                return f"{prefix}{place}"
        return f"{prefix}in{b.ref}" if b.ref < REF_OUTPUT else ""

    for i, d in enumerate(plan.plan.dispatches):
        module = where(d.modules)
        label = "\n".join(filter(None, (f"{i}: {d.name}", d.kernel, module)))
        yield f"{prefix}{i} [label={_quoted(label)}];"
        for b in d.bindings:
            if b.written or b.ref == REF_ERROR:
                continue
            source = origin(b)
            if source == f"{prefix}in{b.ref}" and b.ref not in drawn:
                drawn.add(b.ref)
                yield f"{source} [label={_quoted(plan.label(b, offsets=False))}, shape=ellipse, color=gray];"
            if source:
                yield f"{source} -> {prefix}{i} [label={_quoted(amount(b.size))}];"
        writers += [(b, i) for b in d.bindings if b.written and b.ref != REF_ERROR]
    last = {b.ref: place for b, place in writers if b.ref < REF_TEMP}
    for ref, place in last.items():
        name = f"output {ref - REF_OUTPUT}" if ref >= REF_OUTPUT else f"{plan.tensors.get(ref, ref)} (written)"
        yield f"{prefix}out{ref} [label={_quoted(name)}, shape=ellipse];"
        yield f"{prefix}{place} -> {prefix}out{ref};"
