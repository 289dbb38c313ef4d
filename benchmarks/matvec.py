"""Sweep of the matrix-vector kernel's shapes over the products of decoding Qwen2.5 (0.5B and 1.5B), by kind of weights.

``python -m benchmarks.matvec --json FILE`` measures on the present device, most important products first, within
``--time-limit`` seconds. ``python -m benchmarks.matvec --write-table FILE...`` puts the best shapes of such files into the
table that the package ships, and needs no device.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import torch_webgpu
from torch_webgpu.kernels import tuning
from torch_webgpu.kernels.measure import ENOUGH, Bench, Product, entry, search
from torch_webgpu.kernels.tuning import Choice, Entry

#: (K, N, streams, epilogue, norm before) of a decoder layer and the head: QKV, attention's output, gate and up, down, head.
SHAPES = {
    "0.5b": (
        (896, 896, 1, "residual", False),
        (896, 4864, 2, "gated", True),
        (4864, 896, 1, "residual", False),
        (896, 1152, 1, "", True),
        (896, 151936, 1, "", True),
    ),
    "1.5b": (
        (1536, 1536, 1, "residual", False),
        (1536, 8960, 2, "gated", True),
        (8960, 1536, 1, "residual", False),
        (1536, 2048, 1, "", True),
        (1536, 151936, 1, "", True),
    ),
}
#: By importance: what is decoded most, and where the shape matters most.
ORDER = (
    ("0.5b", "float32"),
    ("0.5b", "float16"),
    ("1.5b", "float16"),
    ("0.5b", "int4"),
    ("1.5b", "int4"),
    ("1.5b", "float32"),
    ("0.5b", "int8"),
    ("1.5b", "int8"),
)


def products(models: list[str], kinds: list[str], rows: int = 1) -> list[Product]:
    """The products of the sweep in order of importance."""
    return [
        Product(kind, k, n, streams, rows, epilogue, norm)
        for model, kind in ORDER
        if model in models and kind in kinds
        for k, n, streams, epilogue, norm in SHAPES[model]
    ]


def sweep(chosen: list[Product], seconds: float, activations: torch.dtype | None, pattern: str) -> list[dict[str, Any]]:
    """Measures products one after the other; what the time does not allow is left out."""
    start = time.perf_counter()
    end = start + seconds
    found = []
    for i, product in enumerate(chosen):
        now = time.perf_counter()
        if now >= end:
            print(f"out of time: {len(chosen) - i} products were not measured")
            break
        bench = Bench(product, activations)
        share = 2.5 * (end - now) / (len(chosen) - i)  # most need less than they may take
        timed = search(bench, min(end, now + share))
        del bench
        torch.webgpu.empty_cache()  # type: ignore[attr-defined]
        best = min(timed, key=timed.__getitem__)
        us, table = timed[best], tuning.choose(product.kind, product.n, product.k, product.streams, product.m)
        from_table = f"table {timed[table]:.2f}" if table in timed else "table's not timed"
        print(
            f"{product!s:28} {us:8.2f} us {product.bytes / us / 1e3:7.0f} GB/s  {best!s:46} {from_table}, "
            f"{len(timed)} shapes, {time.perf_counter() - now:.1f} s",
            flush=True,
        )
        found.append(
            {
                "product": asdict(product),
                "bytes": product.bytes,
                "microseconds": us,
                "entry": entry(product, timed, pattern).to_json(),
                "timed": [asdict(c) | {"microseconds": t} for c, t in sorted(timed.items(), key=lambda item: item[1])],
            }
        )
    print(f"{time.perf_counter() - start:.0f} s")
    return found


def write_table(files: list[Path], pattern: str | None) -> None:
    """Puts the best shapes of result files into the shipped table, but those of products that time cut short."""
    entries = []
    for results in (json.loads(file.read_text()) for file in files):
        lines = [found["entry"] for found in results.get("products", ()) if len(found["timed"]) >= ENOUGH]
        entries += [Entry.from_json(line) for line in lines + results.get("entries", [])]
    if pattern is not None:
        entries = [Entry.from_json(e.to_json() | {"adapter": pattern, "implementation": ""}) for e in entries]
    tuning.write(tuning.SHIPPED, entries)
    print(f"{len(entries)} entries into {tuning.SHIPPED}")


def _adapter_class() -> str:
    """``nvidia`` and the like: what other GPUs of the maker may take too."""
    name = tuning.adapter_name()
    return next((maker for maker in ("nvidia", "amd", "intel", "apple") if maker in name), name)


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--time-limit", type=float, default=150.0, help="seconds")
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--kinds", nargs="+", choices=list(tuning.BLOCK), default=["float32", "float16", "int4", "int8"])
    parser.add_argument("--activations", choices=["float32", "float16", "bfloat16"], help="dtype of x and the result")
    parser.add_argument("--rows", type=int, choices=range(1, 9), default=1, help="rows of x")
    parser.add_argument("--adapter", help="write entries for adapters with this in their name, both implementations")
    parser.add_argument("--write-table", type=Path, nargs="+", metavar="FILE", help="results for the shipped table")
    parser.add_argument("--choice", help="measure this shape only: rows,lanes,workgroup,unroll,stage (1,32,128,2,0)")
    args = parser.parse_args()
    if args.write_table:
        write_table(args.write_table, args.adapter)
        return
    activations = getattr(torch, args.activations) if args.activations else None
    chosen = products(args.models, args.kinds, args.rows)
    if args.choice:
        rows, lanes, workgroup, unroll, stage = map(int, args.choice.split(","))
        for product in chosen:
            us = Bench(product, activations).microseconds(Choice(rows, lanes, workgroup, unroll, bool(stage)))
            print(f"{product!s:28} {us:8.2f} us {product.bytes / us / 1e3:7.0f} GB/s", flush=True)
        return
    properties = torch.webgpu.get_device_properties()  # type: ignore[attr-defined]
    print(f"{properties.name} ({properties.implementation})")
    found = sweep(chosen, args.time_limit, activations, args.adapter or _adapter_class())
    if args.json:
        environment = {
            "adapter": properties.name,
            "implementation": properties.implementation,
            "driver": properties.driver,
            "torch": torch.__version__,
            "torch_webgpu": torch_webgpu.__version__,
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"environment": environment, "products": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
