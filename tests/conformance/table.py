"""The data (``docs/ops.csv``) and the page made of it (``docs/ops.md``)."""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from pathlib import Path

from . import special, tolerance
from .judge import VERDICTS, Depth, Verdict
from .pairs import BY_NAME, Pair

DOCS = Path(__file__).parent.parent.parent / "docs"
DATA, PAGE = DOCS / "ops.csv", DOCS / "ops.md"
SIGNS = {
    "native": "●",
    "decomposed": "◐",
    "fell back": "○",
    "refused": "–",
    "wrong": "**W**",
    "hung": "**H**",
    "crashed": "**C**",
}
_MEANING = {
    "native": "kernels of this package, or PyTorch's own composition of ops that have them",
    "decomposed": "through a decomposition of PyTorch's table, into such ops",
    "fell back": "some of the op, or of its gradient, runs on the CPU, announced and counted",
    "refused": "an error that names the dtype: float64 or complex numbers, which WGSL does not have",
    "wrong": "another result, or another exception, than the CPU's",
    "hung": "no answer within the time limit",
    "crashed": "the process ended, or the check itself raised",
}


def read(path: Path = DATA) -> dict[Pair, Verdict]:
    """The committed verdicts."""
    with path.open(newline="") as file:
        return {(r["op"], r["dtype"]): Verdict(r["verdict"], r["reason"], r["sample"]) for r in csv.DictReader(file)}


def write(verdicts: dict[Pair, Verdict]) -> None:
    """Data and page."""
    order = {name: i for i, name in enumerate(BY_NAME)}
    rows = sorted(verdicts.items(), key=lambda item: (item[0][0].lower(), item[0][0], order[item[0][1]]))
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("op", "dtype", "verdict", "reason", "sample"))
    lines.writerows((*pair, v.verdict, v.reason, v.sample) for pair, v in rows)
    DATA.write_text(text.getvalue())
    PAGE.write_text(page(dict(rows)))


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def _counts(verdicts: dict[Pair, Verdict]) -> str:
    by_dtype: dict[str, Counter[str]] = defaultdict(Counter)
    for (_, dtype), v in verdicts.items():
        by_dtype[dtype][v.verdict] += 1
    total = sum(by_dtype.values(), Counter())
    lines = ["| | | all | " + " | ".join(BY_NAME) + " |", "|---|---|--:|" + "--:|" * len(BY_NAME)]
    for verdict in VERDICTS:
        cells = " | ".join(str(by_dtype[d][verdict]) for d in BY_NAME)
        lines.append(f"| {SIGNS[verdict]} | {verdict} | {total[verdict]} | {cells} |")
    sizes = [total, *(by_dtype[d] for d in BY_NAME)]
    shares = " | ".join(_percent(c["native"] + c["decomposed"], c.total()) for c in sizes)
    held = " | ".join(_percent(c["native"] + c["decomposed"], c.total() - c["refused"]) for c in sizes)
    lines += [f"| | native or decomposed | {shares} |", f"| | of those not refused | {held} |"]
    return "\n".join(lines)


def _reasons(verdicts: dict[Pair, Verdict]) -> str:
    grouped: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (name, dtype), v in verdicts.items():
        if v.verdict not in ("native", "decomposed"):
            grouped[name, v.verdict, v.reason].append(dtype)
    lines = ["| op | dtypes | | why |", "|---|---|---|---|"]
    for (name, verdict, reason), dtypes in grouped.items():
        lines.append(f"| {name} | {', '.join(dtypes)} | {verdict} | {_escaped(reason)} |")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def page(verdicts: dict[Pair, Verdict]) -> str:
    """The page, Markdown."""
    names = list(dict.fromkeys(name for name, _ in verdicts))
    depth = Depth()
    table = ["| op | " + " | ".join(BY_NAME) + " |", "|---|" + ":-:|" * len(BY_NAME)]
    for name in names:
        cells = (verdicts.get((name, d)) for d in BY_NAME)
        table.append(f"| {name} | " + " | ".join(SIGNS[v.verdict] if v else "" for v in cells) + " |")
    bounds = [f"| {name} | {r:g} | {a:g} | {why} |" for name, (r, a, why) in sorted(tolerance.BOUNDS.items())]
    expected = [
        f"| {name} | {', '.join(dtypes) or 'all'} | {', '.join(aspects) or 'all'} | {why} |"
        for name, (dtypes, aspects, why) in special.expected()
    ]
    legend = "\n".join(f"| {SIGNS[v]} | {v} | {_MEANING[v]} |" for v in VERDICTS)
    return f"""# Ops

What `make conformance` found: PyTorch's own samples of {len(names)} ops (`op_db`), each with every dtype that the CPU
supports and WebGPU can hold, on webgpu against the CPU. A pair of op and dtype is tried with plain samples (up to
{depth.forward}, evenly spread over PyTorch's list, and an empty one), and with up to {depth.others} of each: `out=` (with
gaps; empty), in place, non-contiguous, gradients (float32 only); then broadcast, promoted, zero-size and extremal inputs
(NaN, infinities, signed zeros, subnormals, integer limits) and inputs that must raise. The worst of these is the pair's
verdict. The page is made of [ops.csv](ops.csv), which also names the smallest call that shows it.

| | verdict | meaning |
|---|---|---|
{legend}

## Counts

{_counts(verdicts)}

## By op

An empty cell: the CPU does not have the op for the dtype.

{chr(10).join(table)}

## Why not natively

{_reasons(verdicts)}

## Tolerances

Results are compared with PyTorch's own tolerances: those of the OpInfo, else `torch.testing.assert_close`'s. Where a
result differs from the CPU's, it may be as close to what the CPU computes in float64. Wider, in float32:

| op | rtol | atol | why |
|---|--:|--:|---|
{chr(10).join(bounds)}

Random ops are compared by shape, dtype, range and moments; `empty` and its like by shape, dtype and strides.

## Not compared

| op | dtypes | with | why |
|---|---|---|---|
{chr(10).join(expected)}

Compared after conversion to the CPU's dtype:

| op | why |
|---|---|
{chr(10).join(f"| {name} | {why} |" for name, why in sorted(special.OTHER_DTYPE.items()))}
"""
