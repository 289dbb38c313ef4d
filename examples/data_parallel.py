"""Data-parallel training: one process per machine (or adapter), gradients averaged through Gloo.

Two processes on this machine, which share its adapter::

    torchrun --standalone --nproc-per-node 2 examples/data_parallel.py

Several machines: ``torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29400 ...`` on each. One
process alone (``python examples/data_parallel.py``) takes the same batches whole, and gets the same losses.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from itertools import cycle, islice

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def spirals(count: int) -> TensorDataset:
    """Points on three noisy spirals, float32 [count, 2], and which of them, int64 [count]."""
    generator = torch.Generator().manual_seed(0)
    radius = torch.rand(count, generator=generator)
    which = torch.arange(count) % 3
    angle = 4 * radius + which * (2 * torch.pi / 3) + 0.1 * torch.randn(count, generator=generator)
    return TensorDataset(torch.stack((radius * angle.cos(), radius * angle.sin()), 1), which)


def train(steps: int, batch: int, compiled: bool = False) -> Iterator[float]:
    """Yields the mean loss of each step, over ``batch`` samples that the processes of the default group share.

    Args:
        compiled: whether the model goes through ``torch.compile``.
    """
    together = dist.is_initialized()
    rank, world = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
    torch.manual_seed(0)
    net: nn.Module = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3)).to("webgpu")
    if together:
        net = DistributedDataParallel(net)
    step = torch.compile(net, backend="webgpu") if compiled else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    # Every process takes each world-th sample: all of them together take the batch that one alone would.
    data = spirals(10 * batch)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data, world, rank, shuffle=False)
    batches = cycle(DataLoader(data, batch // world, sampler=sampler))
    for points, labels in islice(batches, steps):
        loss = F.cross_entropy(step(points.to("webgpu")), labels.to("webgpu"))
        optimizer.zero_grad()
        loss.backward()  # averages the gradients of all processes
        optimizer.step()
        mean = loss.detach() / world
        if together:
            dist.all_reduce(mean)
        yield mean.item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Data-parallel training on WebGPU.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=48, help="samples of all processes in one step")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    arguments = parser.parse_args()
    together = "RANK" in os.environ  # set by torchrun
    if together:
        dist.init_process_group("gloo")
    for step, loss in enumerate(train(arguments.steps, arguments.batch, arguments.compile)):
        if not together or dist.get_rank() == 0:
            print(f"step {step:3d}  loss {loss:.6f}", flush=True)
    if together:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
