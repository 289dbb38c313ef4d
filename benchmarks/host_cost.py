"""Host cost of an eager op: enqueue time beside cpu and cuda, its split, and the cost of a recipe miss.

Enqueue is timed in bursts shorter than a submit, with the device idle before each; "sustained" runs many ops with their
submits and waits for all GPU work.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import torch_webgpu
from torch_webgpu import _C

BURST, REPEATS, SUSTAINED = 100, 200, 20000


def synchronize(device: str) -> None:
    """Waits for the device."""
    if device == "webgpu":
        torch.webgpu.synchronize()  # type: ignore[attr-defined]
    elif device == "cuda":
        torch.cuda.synchronize()


def enqueue_us(device: str, op: Callable[[], Any]) -> dict[str, float]:
    """Host microseconds an op, over bursts with an idle device."""
    for _ in range(300):
        op()
    samples = []
    for _ in range(REPEATS):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(BURST):
            op()
        samples.append((time.perf_counter() - start) / BURST * 1e6)
    samples.sort()
    return {
        "median": statistics.median(samples),
        "p10": samples[len(samples) // 10],
        "p90": samples[-len(samples) // 10],
        "n": len(samples),
    }


def sustained_us(device: str, op: Callable[[], Any]) -> float:
    """Microseconds an op with submits and all GPU work waited for."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(SUSTAINED):
        op()
    synchronize(device)
    return (time.perf_counter() - start) / SUSTAINED * 1e6


def split_ns(op: Callable[[], Any]) -> dict[str, float]:
    """Nanoseconds of each stage of a replay (the clock itself adds about 25 ns a stage)."""
    op()
    torch.webgpu.synchronize()  # type: ignore[attr-defined]
    _C.profile(True)
    _C.reset_stats()
    for _ in range(BURST):
        op()
    stats = _C.stats()
    _C.profile(False)
    return {k.removesuffix("_ns"): stats[k] / stats["launches"] for k in stats if k.endswith("_ns") and k != "miss_ns"}


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
    devices = ["webgpu", "cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    result: dict[str, Any] = {
        "environment": {
            "adapter": properties.name,
            "implementation": properties.implementation,
            "driver": properties.driver,
            "torch": torch.__version__,
            "torch_webgpu": torch_webgpu.__version__,
            "python": platform.python_version(),
            "machine": platform.processor() or platform.machine(),
        },
        "shape": [16, 16],
    }
    with torch.inference_mode():
        for device in devices:
            x, y = torch.randn(16, 16).to(device), torch.randn(16, 16).to(device)
            for name, op in (("x + 1.0", lambda x=x: x + 1.0), ("x + y", lambda x=x, y=y: x + y)):
                entry: dict[str, Any] = {"enqueue_us": enqueue_us(device, op)}
                if device != "cpu":
                    entry["sustained_us"] = sustained_us(device, op)
                if device == "webgpu":
                    entry["split_ns"] = split_ns(op)
                result.setdefault(device, {})[name] = entry
        result["miss_us"] = miss_us()
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
