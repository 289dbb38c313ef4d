"""Trains a CNN on drawn digits: on the CPU, on WebGPU op by op and compiled, and plots the three loss curves.

    python examples/train_mnist_like.py --plot losses.png

The pictures are made here: digits of a 5 x 7 font, turned, scaled, moved and blurred by noise, 28 x 28 as in MNIST.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn

# Ten digits, seven rows of five dots each; the bits of a row from left to right.
FONT = (
    (14, 17, 19, 21, 25, 17, 14),
    (4, 12, 4, 4, 4, 4, 14),
    (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14),
    (2, 6, 10, 18, 31, 2, 2),
    (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14),
    (31, 1, 2, 4, 8, 8, 8),
    (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
)
RUNS = {"CPU": ("cpu", False), "WebGPU, op by op": ("webgpu", False), "WebGPU, compiled": ("webgpu", True)}


def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures, float32 [count, 1, 28, 28], and the digits on them, int64 [count]."""
    digits = torch.randint(0, 10, (count,), generator=generator)
    dots = torch.tensor(FONT)[digits, :, None].bitwise_right_shift(torch.arange(4, -1, -1)) & 1

    def between(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=generator)

    angle, size = between(-0.3, 0.3), between(1.2, 1.7)
    rows = torch.stack((angle.cos() * size * 1.2, -angle.sin() * size, between(-0.3, 0.3)), 1)
    columns = torch.stack((angle.sin() * size * 1.2, angle.cos() * size, between(-0.3, 0.3)), 1)
    grid = F.affine_grid(torch.stack((rows, columns), 1), [count, 1, 28, 28], align_corners=False)
    pictures = F.grid_sample(dots[:, None].float(), grid, align_corners=False)
    return pictures + 0.3 * torch.randn(pictures.shape, generator=generator), digits


def batches(steps: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The same ones every time."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield draw(size, generator)


def network() -> nn.Module:
    """Two convolutions with batch norm, two linear layers: the same weights every time."""
    torch.manual_seed(0)
    first = (nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(16 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10))


@dataclass
class Run:
    """What one training gave: the loss of each step, the share of right answers afterwards, and the seconds it took."""

    losses: list[float]
    accuracy: float
    seconds: float


def train(name: str, steps: int, size: int, progress: Progress) -> Run:
    device, compiled = RUNS[name]
    net = network().to(device)
    forward = torch.compile(net, backend="webgpu") if compiled else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    task = progress.add_task(name, total=steps, loss=math.nan)
    start, losses = time.perf_counter(), []
    for pictures, digits in batches(steps, size):
        loss = F.cross_entropy(forward(pictures.to(device)), digits.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        progress.update(task, advance=1, loss=losses[-1])
    seconds = time.perf_counter() - start
    net.eval()
    pictures, digits = draw(500, torch.Generator().manual_seed(2))
    with torch.no_grad():
        right = net(pictures.to(device)).argmax(1).cpu() == digits
    return Run(losses, right.float().mean().item(), seconds)


def plot(runs: dict[str, Run], path: Path) -> None:
    """Losses by step, above how far they are from the CPU's."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, figsize=(7, 5), sharex=True, height_ratios=(2, 1), layout="constrained")
    for (name, run), style in zip(runs.items(), ("-", "--", ":"), strict=False):
        above.plot(run.losses, style, label=name, linewidth=2)
        if name != "CPU" and "CPU" in runs:
            away = [max(abs(x - y), 1e-9) for x, y in zip(run.losses, runs["CPU"].losses, strict=True)]
            below.plot(away, style, color=above.lines[-1].get_color(), linewidth=1)
    above.set(ylabel="cross entropy", yscale="log", title="A CNN on drawn digits")
    above.legend()
    below.set(xlabel="step", ylabel="difference from CPU", yscale="log")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a CNN on drawn digits, on the CPU and on WebGPU.")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument(
        "--on", choices=list(RUNS), action="append", help="one of the three (again for more); all by default"
    )
    parser.add_argument("--plot", type=Path, help="a picture of the loss curves (needs matplotlib)")
    arguments = parser.parse_args()
    console = Console()
    columns = (
        TextColumn("{task.description:16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
    )
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        runs = {name: train(name, arguments.steps, arguments.batch, progress) for name in arguments.on or RUNS}
    table = Table("", "last loss", "right of 500 new ones", "seconds")
    for name, run in runs.items():
        table.add_row(name, f"{run.losses[-1]:.4f}", f"{run.accuracy:.1%}", f"{run.seconds:.1f}")
    console.print(table)
    if arguments.plot:
        plot(runs, arguments.plot)


if __name__ == "__main__":
    main()
