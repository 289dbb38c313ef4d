"""``torch-webgpu tune``."""

from __future__ import annotations

import time
from enum import Enum
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from .console import device_name, err, fail, load_torch, out, quiet, reported


class Kind(str, Enum):
    """Kinds of weights that have a matrix-vector kernel."""

    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"
    int8 = "int8"
    int4 = "int4"


def _parsed(shapes: list[str]) -> list[tuple[int, ...]]:
    """K, N and how many matrices of texts such as ``896x1152`` (K x N) and ``896x4864x2`` (two matrices in one launch)."""
    parsed: list[tuple[int, ...]] = []
    for text in (part for argument in shapes for part in argument.split(",")):
        numbers = [int(n) for n in text.split("x") if n.isdecimal()]
        if len(numbers) != text.count("x") + 1 or len(numbers) not in (2, 3) or min(numbers) < 1 or numbers[0] % 32:
            raise fail(f"{text!r} is no shape: write KxN or KxNxS, like 896x4864x2, with K a multiple of 32.")
        parsed.append((*numbers, 1)[:3])
    return parsed


def tune(
    shapes: Annotated[
        list[str] | None,
        typer.Option(help="KxN, KxNxS for S matrices in one launch; commas between.", show_default="Qwen2.5-0.5B's"),
    ] = None,
    kind: Annotated[list[Kind] | None, typer.Option(help="Kind of weights.", show_default="float32, float16")] = None,
    time_limit: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Measures no longer than this.")] = 120,
) -> None:
    """Times shapes of the matrix-vector kernel on this adapter, and remembers the best for all later runs."""
    kinds = kind or [Kind.float32, Kind.float16]
    parsed = _parsed(shapes or ["896x896,896x4864x2,4864x896,896x1152,896x151936"])
    with reported():
        _tune(parsed, kinds, time_limit)


def _tune(shapes: list[tuple[int, ...]], kinds: list[Kind], seconds: float) -> None:
    quiet()
    with err.status("Loading PyTorch…") as status:
        load_torch()
        from ..kernels import tuning
        from ..kernels.measure import ENOUGH, Bench, Product, entry, search

        epilogue = {1: "residual", 2: "gated"}
        products = [Product(kind.value, k, n, s, epilogue=epilogue.get(s, "")) for kind in kinds for k, n, s in shapes]
        described = device_name("webgpu")
        table = Table("product", "µs", "GB/s", "shape of the kernel", title=escape(described), title_justify="left")
        for column in table.columns[1:3]:
            column.justify = "right"
        end, written = time.perf_counter() + seconds, 0
        for i, product in enumerate(products):
            if (now := time.perf_counter()) > end:
                break
            status.update(f"{product} ({i + 1} of {len(products)})…")
            timed = search(Bench(product), now + 2 * (end - now) / (len(products) - i))
            best = min(timed, key=timed.__getitem__)
            table.add_row(str(product), f"{timed[best]:.2f}", f"{product.bytes / timed[best] / 1e3:.0f}", str(best))
            if len(timed) >= ENOUGH:
                tuning.write(tuning.user_file(), [entry(product, timed)])
                written += 1
    out.print(table)
    if written < len(products):
        short = f"Time is up: {len(products) - written} products were not measured well enough; see --time-limit."
        err.print(f"[yellow]{short}[/]", soft_wrap=True)
    if written:
        out.print(f"[dim]Written to {escape(str(tuning.user_file()))}; delete it to forget.[/]", soft_wrap=True)
