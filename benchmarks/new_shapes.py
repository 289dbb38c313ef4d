"""Cost of an op on a new shape: of a recipe that is derived from others, and of one that goes through the lowering."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torch_webgpu import _C


def miss_cases() -> dict[str, tuple[Callable[[int], torch.Tensor], Callable[[torch.Tensor], Any]]]:
    """Ops on a sequence that grows: how its tensor of a length is made, and what is done with it."""
    one = torch.randn(1, 2, 1, 64, device="webgpu")
    query = torch.randn(1, 4, 1, 64, device="webgpu")
    weight, scale = torch.randn(128, 64, device="webgpu"), torch.randn(64, device="webgpu")
    index, table = torch.tensor([0, 3], device="webgpu"), torch.randn(50, 64, device="webgpu")
    attention = torch.nn.functional.scaled_dot_product_attention

    def heads(n: int) -> torch.Tensor:
        return torch.randn(1, 2, n, 64, device="webgpu")

    def rows(n: int) -> torch.Tensor:
        return torch.randn(1, n, 64, device="webgpu")

    def ids(n: int) -> torch.Tensor:
        return torch.zeros(1, n, dtype=torch.int64, device="webgpu")

    return {
        "x + 1.0": (heads, lambda x: x + 1.0),
        "x.transpose(1, 2) + y": (rows, lambda x: x.transpose(1, 2) + x.transpose(1, 2)),
        "x.to(float16)": (rows, lambda x: x.half()),
        "contiguous": (rows, lambda x: x.transpose(1, 2).contiguous()),
        "cat": (heads, lambda x: torch.cat([x, one], 2)),
        "index": (rows, lambda x: x[:, index]),
        "index_copy_": (rows, lambda x: x.index_copy_(1, index, x[:, :2])),
        "embedding": (ids, lambda x: torch.nn.functional.embedding(x, table)),
        "matmul": (heads, lambda x: x @ one.transpose(2, 3)),
        "linear": (rows, lambda x: torch.nn.functional.linear(x, weight)),
        "attention of one query": (heads, lambda x: attention(query, x, x, enable_gqa=True)),
        "causal attention": (heads, lambda x: attention(x, x, x, is_causal=True)),
        "layer_norm": (rows, lambda x: torch.nn.functional.layer_norm(x, (64,), scale)),
        "rms_norm": (rows, lambda x: torch.nn.functional.rms_norm(x, (64,), scale)),
        "softmax": (heads, lambda x: x.softmax(-1)),
        "mean": (rows, lambda x: x.mean(1)),
        "argmax": (rows, lambda x: x.argmax(1)),
        "topk": (rows, lambda x: x.topk(5, 1)),
        "where": (rows, lambda x: torch.where(x > 0, x, 0.0)),
        "arange": (rows, lambda x: torch.arange(x.shape[1], device="webgpu")),
    }


def miss_us() -> dict[str, dict[str, float]]:
    """Microseconds of an op on a new shape, without a pipeline to compile.

    ``growing``: the same op on ever new shapes; ``python`` of these went through the lowering. ``first``: a shape of a kind
    that was not met before, through the lowering.
    """
    out = {}
    for name, (make, op) in miss_cases().items():
        inputs = [make(n) for n in range(70, 190)]
        for x in inputs[:20]:
            op(x)
        torch.webgpu.synchronize()  # type: ignore[attr-defined]
        samples: dict[str, list[float]] = {"growing": [], "first": []}
        before = _C.stats()
        for kind in samples:
            for x in inputs[20:]:
                if kind == "first":
                    _C.clear_recipes()
                start = time.perf_counter()
                op(x)
                samples[kind].append((time.perf_counter() - start) * 1e6)
            if kind == "growing":
                after = _C.stats()
            torch.webgpu.synchronize()  # type: ignore[attr-defined]
        misses, derived = (after[k] - before[k] for k in ("misses", "derived"))
        out[name] = {kind: statistics.median(times) for kind, times in samples.items()}
        out[name]["python"] = misses / max(misses + derived, 1)
    return out


def main() -> None:
    """Measures and prints; ``--out`` writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    properties = torch.webgpu.get_device_properties()  # type: ignore[attr-defined]
    environment = {"adapter": properties.name, "implementation": properties.implementation, "torch": torch.__version__}
    with torch.inference_mode():
        result: dict[str, Any] = {"environment": environment, "miss_us": miss_us()}
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
