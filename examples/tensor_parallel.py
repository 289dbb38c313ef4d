"""Tensor-parallel inference with DTensor: each process holds a share of every weight of a small transformer.

    torchrun --standalone --nproc-per-node 2 examples/tensor_parallel.py

The query, key, value and up projections are split by columns, the output and down projections by rows, so that a layer needs
two all-reduces (Shoeybi et al., Megatron-LM, arXiv:1909.08053). Every process checks its logits against the whole model's.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, HEADS, LAYERS, VOCABULARY = 64, 4, 2, 128


class Attention(nn.Module):
    """Causal self-attention; float32 [batch, length, width] to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        # As many heads as this process has columns for.
        q, k, v = (f(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.query, self.key, self.value))
        found: Tensor = self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return found


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))  # type: ignore[no-any-return]


def share(model: nn.Sequential, mesh: DeviceMesh) -> None:
    """Leaves this process its share of every layer's weights."""
    columns = {name: ColwiseParallel() for name in ("attention.query", "attention.key", "attention.value", "up")}
    rows = {name: RowwiseParallel() for name in ("attention.out", "down")}
    for layer in list(model)[1:-1]:
        parallelize_module(layer, mesh, {**columns, **rows})


def check() -> tuple[int, int, float]:
    """Numbers of weights that this process holds and that the model has, and the largest error of its logits."""
    mesh = init_device_mesh("webgpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *(Layer() for _ in range(LAYERS)), nn.Linear(WIDTH, VOCABULARY))
    tokens = torch.randint(0, VOCABULARY, (2, 10))
    with torch.no_grad():
        expected = model(tokens)
        weights = sum(p.numel() for p in model.parameters())
        share(model.to("webgpu"), mesh)
        logits = model(tokens.to("webgpu"))
    own = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in model.parameters())
    return own, weights, (logits.cpu() - expected).abs().max().item()


def main() -> None:
    dist.init_process_group("gloo")
    if HEADS % dist.get_world_size():
        raise SystemExit(f"{HEADS} heads cannot be shared by {dist.get_world_size()} processes")
    own, weights, error = check()
    print(f"rank {dist.get_rank()} holds {own} of {weights} weights; largest error {error:.1e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
