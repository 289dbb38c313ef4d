"""Shapes of a decode step's kernels, tried in place: the whole compiled step of a Qwen2.5-shaped model is timed with each.

A kernel timed alone finds its weights and its neighbours' results elsewhere than in the step, and launches overlap
otherwise; here nothing but the one shape changes. ``--json`` keeps every trial and the lines for the table that the package
ships (``benchmarks.matvec --write-table`` takes them).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from torch_webgpu import _C
from torch_webgpu.bench.models import SHAPES
from torch_webgpu.compiler import plan_cache
from torch_webgpu.errors import LimitError, ShaderError
from torch_webgpu.kernels import decode_row, matvec, tuning
from torch_webgpu.kernels.measure import Product, candidates, neighbours
from torch_webgpu.kernels.tuning import Choice, Entry
from torch_webgpu.llm import Generator
from torch_webgpu.llm.quant import quantise

SIZES = {size: SHAPES[f"Qwen2.5-{size}"] for size in ("0.5B", "1.5B")}
PROMPT = 16
Role = tuple[str, int, int, int, int]  # arguments of tuning.choose
ATTENTION = {"WORKGROUP": (256, 512, 1024), "UNROLL": (2, 4, 8), "AHEAD": (4, 8, 16)}


class Step:
    """A decode step whose kernels' shapes can be replaced."""

    def __init__(self, model: Any, length: int, tokens: int) -> None:
        self.generator, self.tokens = Generator(model, length), tokens
        self.roles: dict[Role, Choice] = {}
        self.overrides: dict[Role, Choice] = {}
        matvec.choose = self._choose  # type: ignore[assignment]
        self.prompt = torch.arange(1, PROMPT + 1)
        with plan_cache.bypassed():  # a plan from disk could not be made anew
            self.generator.prefill(self.prompt)
            self.generator.advance(1)

    def _choose(self, *role: Any) -> Choice:
        chosen = self.overrides.get(role) or tuning.choose(*role)  # type: ignore[call-overload]
        self.roles[role] = chosen  # type: ignore[index]
        return chosen

    def rebuild(self) -> None:
        """Makes the plan again, with the shapes as they are now."""
        assert self.generator._step is not None
        graph = self.generator._step[0]
        graph._handle = _C.make_plans(graph.name, graph._plan)

    def microseconds(self, runs: int = 4) -> float:
        """Time of a token, the shortest of some runs; tokens follow a short prompt."""
        times = []
        for _ in range(runs + 1):
            self.generator.prefill(self.prompt)
            torch.webgpu.synchronize()  # type: ignore[attr-defined]
            start = time.perf_counter()
            self.generator.advance(self.tokens)
            torch.webgpu.synchronize()  # type: ignore[attr-defined]
            times.append((time.perf_counter() - start) / self.tokens * 1e6)
        return min(times[1:])


def shapes(role: Role, packed: bool) -> Iterator[Choice]:
    """Candidates for a role, the likeliest first."""
    kind, n, k, streams, m = role
    product = Product(kind, k, n, streams, m)
    first = list(candidates(product, packed))
    yield from first
    for choice in first[:2]:
        yield from neighbours(choice, product)


def tune(step: Step, role: Role, end: float, packed: bool) -> list[dict[str, Any]]:
    """Tries shapes for one role and keeps the best."""
    best, least = step.roles[role], step.microseconds()
    rows = [{"role": role, "choice": str(best), "us": least}]
    tried = {best}
    queue = list(shapes(role, packed))
    while queue and time.perf_counter() < end:
        choice = queue.pop(0)
        if packed and choice.rows % 2:
            choice = replace(choice, rows=2 * choice.rows)
        if choice in tried:
            continue
        tried.add(choice)
        step.overrides[role] = choice
        try:
            step.rebuild()
            us = step.microseconds()
        except (LimitError, ShaderError) as error:
            print(f"  {choice}: {error}")
            continue
        rows.append({"role": role, "choice": str(choice), "us": us})
        if us < least * 0.998:
            best, least = choice, us
            queue[:0] = neighbours(choice, Product(role[0], role[2], role[1], role[3], role[4]))
    step.overrides[role] = best
    step.rebuild()
    print(f"{role}: {rows[0]['us']:.0f} -> {least:.0f} us a token with {best} ({len(rows)} shapes)", flush=True)
    return rows


def tune_attention(step: Step) -> list[dict[str, Any]]:
    """Tries the constants of the attention kernel one after the other and keeps the best."""
    rows = []
    tokens, step.tokens = step.tokens, step.generator.length * 3 // 4  # its time grows with the context
    for name, values in ATTENTION.items():
        found = {}
        for value in values:
            setattr(decode_row, name, value)
            step.rebuild()
            found[value] = step.microseconds()
            rows.append({"constant": name, "value": value, "us": found[value]})
        setattr(decode_row, name, min(found, key=found.__getitem__))
        print(f"attention {name}: " + ", ".join(f"{v}: {us:.0f}" for v, us in found.items()), flush=True)
    step.tokens = tokens
    step.rebuild()
    return rows


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="0.5B")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantize", choices=("int8", "int4"))
    parser.add_argument("--layers", type=int)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument(
        "--only", default="", help="rows of the weights (N) that are tuned, and 'attention'; everything unless given"
    )
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    shape = {**SIZES[args.size], **({"num_hidden_layers": args.layers} if args.layers else {})}
    model = Qwen2ForCausalLM(Qwen2Config(**shape)).to(getattr(torch, args.dtype)).eval()
    if args.quantize:
        model = quantise(model, args.quantize)
    step = Step(model.to("webgpu"), args.length, args.tokens)
    end = time.perf_counter() + args.seconds
    only = args.only.split(",") if args.only else []
    rows = tune_attention(step) if not only or "attention" in only else []
    roles = sorted(step.roles, key=lambda r: r[1] * r[2] * r[3])  # small products first: most of them in a step
    roles = [role for role in roles if not only or str(role[1]) in only]
    for i, role in enumerate(roles):
        now = time.perf_counter()
        rows += tune(step, role, now + (end - now) / (len(roles) - i), args.dtype != "float32")
    us = step.microseconds(10)
    print(f"{args.size} {args.quantize or args.dtype}: {us:.0f} us, {1e6 / us:.0f} tokens/s")
    if args.json:
        implementation = torch.webgpu.get_device_properties().implementation  # type: ignore[attr-defined]
        entries = [
            Entry(
                tuning.adapter_name(), implementation, kind, n, k, streams, m, step.overrides[kind, n, k, streams, m]
            ).to_json()
            for kind, n, k, streams, m in roles
            if (kind, n, k, streams, m) in step.overrides
        ]
        args.json.write_text(json.dumps({"us": us, "trials": rows, "entries": entries}, indent=1))


if __name__ == "__main__":
    main()
