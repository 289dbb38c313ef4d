"""What ``bench fusion`` compares: each case computes one thing in several ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.flop_counter import FlopCounterMode

from ..errors import LimitError
from ..runtime import device
from . import handwritten as by_hand
from .noise import Noise
from .schema import Work

NAMES = ("rms_norm", "mlp", "rms_norm and mlp", "matmul and silu", "k and v", "matmul", "softmax", "argmax")

Tensors = dict[str, torch.Tensor]
Function = Callable[..., Any]


class WrongResultError(RuntimeError):
    """A variant computes something else than the reference; it is not timed."""


@dataclass(frozen=True)
class Case:
    """One computation.

    Attributes:
        name: the workload in the result file.
        parameters: its sizes.
        inputs: float32 tensors on the CPU, by the names of the function's arguments.
        function: what PyTorch runs, eagerly or compiled.
        chains: hand-written ways, by name; what they take is ``by_hand_inputs`` or else the inputs. Made where a device is.
        tolerance: largest difference to the float64 result, relative to its largest element.
        levels: whether the compiler's levels are compared too.
        eager: whether the function is timed op by op.
        returns_index: the result is an index on the host, so that each call waits.
        others: further functions of the same inputs, by name.
        noises: what the inputs are made of, where a page makes them too.
    """

    name: str
    parameters: dict[str, int]
    inputs: Tensors
    function: Function
    chains: Mapping[str, Callable[[], by_hand.Chain]] = field(default_factory=dict)
    by_hand_inputs: Tensors | None = None
    tolerance: float = 1e-5
    levels: bool = True
    eager: bool = True
    returns_index: bool = False
    others: Mapping[str, Function] = field(default_factory=dict)
    noises: Mapping[str, Noise] = field(default_factory=dict)

    def expected(self) -> torch.Tensor:
        """The result in float64 on the CPU."""
        return as_one(self.function(**{name: t.double() for name, t in self.inputs.items()}))

    def work(self) -> Work:
        """Floating-point operations of the products in it, and bytes of its inputs: what every variant has to do."""
        size = sum(t.numel() * t.element_size() for t in self.inputs.values())
        if self.returns_index:  # whose value is needed, so that it cannot run without data
            return {"bytes": float(size)}
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            self.function(**{name: t.to("meta") for name, t in self.inputs.items()})
        return {"flops": float(counter.get_total_flops()), "bytes": float(size)}

    @property
    def on_page(self) -> bool:
        """Whether a page can run it: its inputs are noise that the page makes too."""
        return bool(self.noises)

    @property
    def title(self) -> str:
        """Name and sizes."""
        return f"{self.name} ({', '.join(f'{k} {v}' for k, v in self.parameters.items())})"


def as_one(result: Any) -> torch.Tensor:
    """A result as a tensor on the CPU: that of a plan, or an index."""
    (value,) = result if isinstance(result, tuple) else (result,)
    return torch.as_tensor(value).cpu()


def _noise(*shape: int, seed: int) -> torch.Tensor:
    return Noise(shape, seed).tensor()


def _weight(rows: int, columns: int, seed: int) -> torch.Tensor:
    return _weights(rows, columns, seed).tensor()


def _weights(rows: int, columns: int, seed: int) -> Noise:
    return Noise((rows, columns), seed, columns**-0.5)


def _made(noises: Mapping[str, Noise]) -> Tensors:
    return {name: noise.tensor() for name, noise in noises.items()}


def rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """RMSNorm as models write it: six ops."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + by_hand.EPS) * w


def mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Gated MLP with residual: seven ops."""
    g = F.linear(x, gate)
    return F.linear(g * torch.sigmoid(g) * F.linear(x, up), down) + x


def block(x: torch.Tensor, w: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """RMSNorm and the MLP after it, with residual."""
    n = rms(x, w)
    g = F.linear(n, gate)
    return F.linear(g * torch.sigmoid(g) * F.linear(n, up), down) + x


def rms_norm_case(width: int) -> Case:
    """RMSNorm of one row, 6 → 1; all elements are summed."""
    noises = {"x": Noise((1, width), 1), "w": Noise((width,), 2, 0.1, 1.0)}
    chains = {"by hand, 6": lambda: by_hand.rms_norm_steps(width), "by hand, 1": lambda: by_hand.rms_norm(width)}
    return Case("rms_norm", {"width": width}, _made(noises), rms, chains, noises=noises)


def _mlp_noises(hidden: int, inner: int) -> dict[str, Noise]:
    return {
        "x": Noise((1, hidden), 3),
        "gate": _weights(inner, hidden, 4),
        "up": _weights(inner, hidden, 5),
        "down": _weights(hidden, inner, 6),
    }


def mlp_case(hidden: int, inner: int) -> Case:
    """Gated MLP at decoding: 7 → 3 → 2."""
    chains = {
        "by hand, 7": lambda: by_hand.mlp_7(hidden, inner),
        "by hand, 3": lambda: by_hand.mlp_3(hidden, inner),
        "by hand, 2": lambda: by_hand.mlp_2(hidden, inner),
    }
    noises = _mlp_noises(hidden, inner)
    return Case("mlp", {"hidden": hidden, "inner": inner}, _made(noises), mlp, chains, noises=noises)


def block_case(hidden: int, inner: int) -> Case:
    """RMSNorm and MLP: op by op, fused into three, and as one kernel of one workgroup."""
    inputs = _made({"w": Noise((hidden,), 2, 0.1, 1.0), **_mlp_noises(hidden, inner)})
    chains = {
        "by hand, 13": lambda: by_hand.block_steps(hidden, inner),
        "by hand, 3": lambda: by_hand.block_3(hidden, inner),
        "by hand, mega-kernel": lambda: _mega(hidden, inner),
    }
    return Case("rms_norm and mlp", {"hidden": hidden, "inner": inner}, inputs, block, chains)


def _mega(hidden: int, inner: int) -> by_hand.Chain:
    needed, granted = by_hand.block_mega_bytes(inner), device().limits["maxComputeWorkgroupStorageSize"]
    if needed > granted:
        raise LimitError(f"one workgroup cannot hold {inner} values: {needed} bytes of workgroup storage, {granted} granted")
    return by_hand.block_mega(hidden, inner)


def silu_case(hidden: int, inner: int) -> Case:
    """Matrix-vector product and SiLU: two launches of many workgroups against one of one workgroup."""
    inputs = _made({name: n for name, n in _mlp_noises(hidden, inner).items() if name in ("x", "gate")})
    chains = {
        "by hand, 2": lambda: by_hand.silu_2(hidden, inner),
        "by hand, mega-kernel": lambda: by_hand.silu_mega(hidden, inner),
    }
    return Case("matmul and silu", {"hidden": hidden, "inner": inner}, inputs, _silu, chains)


def _silu(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return F.silu(F.linear(x, gate))


def projections_case(width: int, each: int) -> Case:
    """K and V of grouped attention, side by side: 2 → 1 by hand; PyTorch's ops take one more to lay them so."""
    names = {"wk": _weight(each, width, 7), "wv": _weight(each, width, 8), "bk": _noise(each, seed=9)}
    inputs = {"x": _noise(1, width, seed=10), **names, "bv": _noise(each, seed=11)}
    i = inputs
    hand = {"x": i["x"], "w0": i["wk"], "w1": i["wv"], "b0": i["bk"], "b1": i["bv"]}
    hand |= {"w": torch.cat((i["wk"], i["wv"])), "b": torch.cat((i["bk"], i["bv"]))}
    chains = {
        "by hand, 2": lambda: by_hand.projections(width, each, 2),
        "by hand, 1": lambda: by_hand.merged_projection(width, 2 * each),
    }
    return Case("k and v", {"width": width, "each": each}, inputs, _k_and_v, chains, by_hand_inputs=hand)


def _k_and_v(x: torch.Tensor, wk: torch.Tensor, wv: torch.Tensor, bk: torch.Tensor, bv: torch.Tensor) -> torch.Tensor:
    """Side by side, which costs PyTorch a launch: a graph's separate results cannot share a buffer."""
    return torch.cat((F.linear(x, wk, bk), F.linear(x, wv, bv)), -1)


def matmul_case(m: int, n: int, k: int) -> Case:
    """A product of matrices: naive, in tiles of 16, and the package's own kernel (eager)."""
    inputs = {"a": _noise(m, k, seed=12), "b": _weight(n, k, 13).t().contiguous()}
    chains = {
        "by hand, naive": lambda: by_hand.matmul_naive(m, n, k),
        "by hand, tiled": lambda: by_hand.matmul_tiled(m, n, k),
    }
    sizes = {"m": m, "n": n, "k": k}
    return Case("matmul", sizes, inputs, _matmul, chains, None, 1e-4, levels=False)


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def softmax_case(rows: int, count: int) -> Case:
    """Softmax by one invocation a row, by one workgroup a row, and the package's own kernel (eager)."""
    chains = {
        "by hand, naive": lambda: by_hand.softmax_naive(rows, count),
        "by hand, parallel": lambda: by_hand.softmax_parallel(rows, count),
    }
    sizes = {"rows": rows, "count": count}
    noises = {"x": Noise((rows, count), 14)}
    return Case("softmax", sizes, _made(noises), _softmax, chains, levels=False, noises=noises)


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


def argmax_case(vocabulary: int) -> Case:
    """The likeliest token: all logits read back and searched on the host, or the index alone read back."""
    logits = _noise(1, vocabulary, seed=15)
    logits[0, vocabulary // 3] = 20.0
    others = {"logits read back": _argmax_on_host}
    sizes = {"vocabulary": vocabulary}
    return Case("argmax", sizes, {"logits": logits}, _argmax, levels=False, returns_index=True, others=others)


def _argmax(logits: torch.Tensor) -> int:
    return int(logits.argmax().item())


def _argmax_on_host(logits: torch.Tensor) -> int:
    return int(logits.cpu().argmax())


def cases(quick: bool, small: bool) -> Iterator[Callable[[], Case]]:
    """The cases in order, each made when it is wanted.

    Args:
        quick: small sizes alone.
        small: whether the device is a CPU, where the largest would take minutes.
    """
    full = not quick and not small
    for width in (896, 1536):
        yield partial(rms_norm_case, width)
    sizes = [(256, 256)] if quick else [(896, 4864), (1536, 8960)] if full else [(896, 4864)]
    for hidden, inner in sizes:
        yield partial(mlp_case, hidden, inner)
    for hidden, inner in [(256, 256)] if quick else [(256, 256), (896, 256), (896, 2048), (896, 4864)]:
        yield partial(block_case, hidden, inner)
    for hidden, inner in [(256, 64)] if quick else [(896, 256)]:
        yield partial(silu_case, hidden, inner)
    for width, each in [(896, 128)] if quick else [(896, 128), (1536, 256)]:
        yield partial(projections_case, width, each)
    shapes = [(67, 64, 33)] if quick else [(256, 256, 256)]
    for m, n, k in [*shapes, (896, 896, 4864), (896, 4864, 896)] if full else shapes:
        yield partial(matmul_case, m, n, k)
    for rows, count in [(1, 1024)] if quick else [(1, 1024), (128, 1024)]:
        yield partial(softmax_case, rows, count)
    yield partial(argmax_case, 4096 if quick else 151936)
