"""What each process of tests/test_distributed.py does; prints one JSON object per process."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.futures import Future
from torch.utils._pytree import tree_leaves, tree_map

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import data_parallel
import tensor_parallel

Collective = Callable[[Tensor, int, int], Any]  # of this process's numbers [4, 3], its rank and the number of processes
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8)


def all_reduce(x: Tensor, rank: int, world: int) -> Any:
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x


def all_reduce_strided(x: Tensor, rank: int, world: int) -> Any:
    part = x.t()[::2]
    if x.device.type == "cpu":  # where Gloo takes it for a dense one
        dense = part.contiguous()
        dist.all_reduce(dense)
        part.copy_(dense)
    else:
        dist.all_reduce(part)
    return x


def all_reduce_later(x: Tensor, rank: int, world: int) -> Any:
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    done = x.clone()
    work.wait()
    return done, x


def future(x: Tensor, rank: int, world: int) -> Any:
    def doubled(done: Future[Any]) -> Any:
        return done.value()[0] * 2

    return dist.all_reduce(x, async_op=True).get_future().then(doubled).wait(), x


def all_gather(x: Tensor, rank: int, world: int) -> Any:
    whole, parts = x.new_zeros(4 * world, 3), [torch.zeros_like(x) for _ in range(world)]
    dist.all_gather_into_tensor(whole, x)
    dist.all_gather(parts, (x + 1).contiguous())
    return whole, parts


def broadcast(x: Tensor, rank: int, world: int) -> Any:
    dist.broadcast(x[1:], world - 1)
    return x


def reduce(x: Tensor, rank: int, world: int) -> Any:
    dist.reduce(x, 0)
    return x if rank == 0 else []


def reduce_scatter(x: Tensor, rank: int, world: int) -> Any:
    parts = list(x.chunk(world)), torch.zeros_like(x.chunk(world)[0]), torch.zeros_like(x.chunk(world)[0])
    dist.reduce_scatter(parts[1], parts[0])
    dist.reduce_scatter_tensor(parts[2], x, op=dist.ReduceOp.MIN)
    return parts[1:]


def gather_scatter(x: Tensor, rank: int, world: int) -> Any:
    there, back = [torch.zeros_like(x) for _ in range(world)], torch.zeros_like(x)
    dist.gather(x, there if rank == 1 else None, dst=1)
    dist.scatter(back, [t + t for t in there] if rank == 1 else None, src=1)
    return there, back


def all_to_all(x: Tensor, rank: int, world: int) -> Any:
    sizes = [[1, 3], [3, 1]]
    uneven = torch.zeros_like(x)
    mine, theirs = sizes[rank], [s[rank] for s in sizes]
    whole = x.new_zeros(sum(theirs), 3)
    dist.all_to_all_single(whole, x, theirs, mine)
    dist.all_to_all(list(uneven.chunk(world)), list(x.chunk(world)))
    return whole, uneven


def messages(x: Tensor, rank: int, world: int) -> Any:
    received, other = torch.zeros_like(x), 1 - rank
    requests = [dist.P2POp(dist.irecv, received, other), dist.P2POp(dist.isend, x, other)]
    for request in dist.batch_isend_irecv(requests):
        request.wait()
        if x.device.type == "webgpu":
            request.wait()  # as often as one likes
    row = torch.zeros_like(x)
    if rank == 0:
        dist.send(x[1], 1)
    else:
        assert dist.recv(row[2]) == 0  # from anyone
    return received, row


def coalesced(x: Tensor, rank: int, world: int) -> Any:
    dist.all_reduce_coalesced([x[:2], x[3:]])
    return x


def objects(x: Tensor, rank: int, world: int) -> Any:
    found: list[Any] = [None] * world
    dist.all_gather_object(found, {"rank": rank, "x": x})
    dist.barrier()
    assert [f["rank"] for f in found] == list(range(world)) and found[0]["x"].device == x.device
    return [f["x"] for f in found]


COLLECTIVES: tuple[Collective, ...] = (
    *(all_reduce, all_reduce_strided, all_reduce_later, future, all_gather, broadcast, reduce, reduce_scatter),
    *(gather_scatter, all_to_all, messages, coalesced, objects),
)


def check_collectives() -> int:
    """Every collective of webgpu tensors against the same of CPU tensors; returns how many."""
    rank, world, checked = dist.get_rank(), dist.get_world_size(), 0
    for collective in COLLECTIVES:
        for dtype in DTYPES if collective is all_reduce else (torch.float32, torch.int64):
            x = ((torch.arange(12).reshape(4, 3) * 7 + 5 * rank) % 11).to(dtype)
            there = x.to("webgpu")
            want, got = collective(x, rank, world), collective(there, rank, world)
            assert all(t.device.type == "webgpu" for t in tree_leaves(got))
            same = tree_map(lambda t: t.cpu(), got)
            torch.testing.assert_close(same, want, rtol=0, atol=0, msg=f"{collective.__name__}: {same}, not {want}")
            checked += 1
    return checked


def errors() -> dict[str, str]:
    """Messages of what Gloo cannot do."""
    found = {}
    for name, group, x in (
        ("dtype", None, torch.ones(3, dtype=torch.int16, device="webgpu")),
        ("backend", dist.new_group(backend="cuda:gloo"), torch.ones(3, device="webgpu")),
    ):
        try:
            dist.all_reduce(x, group=group)
        except (TypeError, RuntimeError) as e:
            found[name] = f"{type(e).__name__}: {e}"
    return found


def sharded() -> list[list[float]]:
    """Losses of a net whose parameters are sharded (FSDP2), and of the whole net with all samples."""
    mesh = init_device_mesh("webgpu", (dist.get_world_size(),))
    x, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 3
    losses: list[list[float]] = []
    for shards in (True, False):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3)).to("webgpu")
        if shards:
            fully_shard([net[0], net[2]], mesh=mesh)
            fully_shard(net, mesh=mesh)
        mine = slice(dist.get_rank(), None, dist.get_world_size()) if shards else slice(None)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        losses.append([])
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x[mine].to("webgpu")), y[mine].to("webgpu"))
            loss.backward()
            optimizer.step()
            mean = loss.detach()
            if shards:
                dist.all_reduce(mean, op=dist.ReduceOp.SUM)
            losses[-1].append(mean.item() / (dist.get_world_size() if shards else 1))
    return losses


def main() -> None:
    # Without a name the device's own backend is taken, which is Gloo as well.
    for name in (None, "gloo"):
        dist.init_process_group(name, timeout=datetime.timedelta(seconds=60))
        dist.barrier()
        checked = check_collectives()
        if name is None:
            dist.destroy_process_group()
    own, weights, error = tensor_parallel.check()
    report = {
        "collectives": checked,
        "errors": errors(),
        "sharded": sharded(),
        "eager": list(data_parallel.train(8, 24)),
        "compiled": list(data_parallel.train(8, 24, compiled=True)),
        "tensor_parallel": {"own": own, "weights": weights, "error": error},
    }
    (Path(sys.argv[1]) / f"{dist.get_rank()}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
