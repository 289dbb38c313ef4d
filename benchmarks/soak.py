"""Ten million ops of every kind in one process: does memory stay flat, does an op get slower, do results stay right?

A round is what a long job does: elementwise work on new and changing shapes, views and in-place writes, products and
reductions, indexing, transfers both ways, tensors of some hundred sizes, a training step, a compiled plan, an error that is
caught. Each sample also checks results against the CPU's. ``--out`` writes the samples as JSON, ``--plot`` draws them.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import platform
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import torch_webgpu
from torch_webgpu import _C, runtime

DEVICE = "webgpu"


class Job:
    """The work of one round, and how many ops it was."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.random = random.Random(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 1)).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.plan: Callable[[torch.Tensor], torch.Tensor] = torch.compile(
            lambda x: torch.softmax(x @ x.T, -1).sum(0) * 2, backend="webgpu"
        )
        self.x = torch.randn(16, 16, device=DEVICE)
        self.index = torch.tensor([3, 0, 3], device=DEVICE)

    def round(self) -> None:
        x = self.x
        with torch.no_grad():
            for i in range(400):
                x = x * 0.5 + float(i % 7)
            for _ in range(20):
                x = torch.softmax(x @ x.T, -1)
                x = x - x.mean(1, keepdim=True)
                y = x[self.index]
                x[1:3] += y[:2]
                x.t()[0].mul_(0.5)
                x = torch.cat([x[8:], x[:8]]).clamp(-1, 1)
            n = 10 * self.random.randint(1, 300)
            made = [torch.zeros(size, device=DEVICE) for size in (n, 7 * n, n // 3)]
            assert (made[0] + 1).sum().item() == n
            made[1][: n // 2].copy_(torch.ones(n // 2))
            self.plan(x)
            with contextlib.suppress(RuntimeError):
                x.view(7)
            if not self.random.randrange(50):
                torch.webgpu.empty_cache()  # type: ignore[attr-defined]
        self.optimizer.zero_grad()
        self.model(x).square().mean().backward()
        self.optimizer.step()

    def check(self) -> None:
        """Raises where the device computes something else than the CPU."""
        a = torch.randn(33, 17)
        for call in (lambda t: torch.softmax(t @ t.T, 1), lambda t: t.cumsum(0), lambda t: (t[5:] * 2).t().contiguous()):
            torch.testing.assert_close(call(a.to(DEVICE)).cpu(), call(a), atol=1e-5, rtol=1e-4)


def sample(ops: int, started: float) -> dict[str, Any]:
    """What might grow."""
    torch.webgpu.synchronize()  # type: ignore[attr-defined]
    gc.collect()
    memory, stats = _C.memory_stats(), _C.stats()
    return {
        "ops": ops,
        "seconds": time.perf_counter() - started,
        "host_bytes": psutil.Process().memory_info().rss,
        "device_reserved": memory["reserved"],
        "device_allocated": memory["allocated"],
        "buffers": memory["buffers"],
        "recipes": stats["recipes"],
        "bind_groups": stats["bind_groups"],
    }


def run(ops: int, samples: int) -> list[dict[str, Any]]:
    """Rounds until so many ops were launched, and ``samples`` + 1 samples."""
    job = Job()
    job.round()
    job.check()
    first = _C.stats()["launches"]
    started = time.perf_counter()
    found = [sample(0, started)]
    columns = (TextColumn("ops"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("host {task.fields[host]} MB, device {task.fields[device]} MB")) as progress:
        bar = progress.add_task("", total=ops, host=0, device=0)
        done = 0
        while done < ops:
            job.round()
            done = int(_C.stats()["launches"] - first)
            if done >= ops * len(found) / samples:
                job.check()
                found.append(sample(done, started))
            host, device = (found[-1][key] >> 20 for key in ("host_bytes", "device_reserved"))
            progress.update(bar, completed=min(done, ops), host=host, device=device)
    return found


def plot(result: dict[str, Any], path: Path) -> None:
    """Host and device memory, and microseconds an op, over the ops."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    samples = result["samples"]
    ops = [s["ops"] / 1e6 for s in samples]
    figure, (memory, speed) = plt.subplots(2, 1, figsize=(7, 5), sharex=True, layout="constrained")
    for key, label in (
        ("host_bytes", "host, resident"),
        ("device_reserved", "device, buffers"),
        ("device_allocated", "device, tensors"),
    ):
        memory.plot(ops, [s[key] / 2**20 for s in samples], label=label)
    memory.set_ylabel("MiB")
    memory.set_ylim(bottom=0)
    memory.legend()
    pairs = list(itertools.pairwise(samples))
    speed.plot(ops[1:], [(b["seconds"] - a["seconds"]) / (b["ops"] - a["ops"]) * 1e6 for a, b in pairs])
    speed.set_ylabel("µs an op")
    speed.set_ylim(bottom=0)
    speed.set_xlabel("million ops")
    figure.suptitle(f"{samples[-1]['ops']:,} ops on {result['adapter']} ({result['implementation']})")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Runs and reports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, default=10_000_000)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    samples = run(args.ops, args.samples)
    adapter = runtime.device().adapter
    result = {
        "adapter": adapter.name,
        "implementation": adapter.implementation,
        "machine": platform.machine(),
        "torch": torch.__version__,
        "torch_webgpu": torch_webgpu.__version__,
        "samples": samples,
    }
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.plot:
        plot(result, args.plot)
    settled, last = samples[len(samples) // 10], samples[-1]
    for key in ("host_bytes", "device_reserved", "buffers", "recipes", "bind_groups"):
        print(f"{key}: {settled[key]:,} after {settled['ops']:,} ops, {last[key]:,} after {last['ops']:,}")


if __name__ == "__main__":
    main()
