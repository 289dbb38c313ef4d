"""What cannot be exported, and targets that are too small: each error names what is in the way and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from replaying import Replayer
from torch import Tensor, nn

from torch_webgpu.errors import ExportError, UnsupportedDTypeError
from torch_webgpu.runtime import DescribedTarget
from torch_webgpu.web import export
from torch_webgpu.web.build import DEFAULT_LIMITS
from torch_webgpu.web.capture import Capture
from torch_webgpu.web.shards import Shards
from torch_webgpu.web.write import Bundler

pytestmark = pytest.mark.once
X = torch.arange(12.0).reshape(3, 4)


class Module(nn.Module):
    """A forward that keeps a Python list."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def _write_view(x: Tensor) -> Tensor:
    x[1:].mul_(2)
    return x + 1


OUTSIDE = torch.ones(4)
PROGRAMS: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "data-dependent size": (lambda x: x.nonzero(), X, "nonzero"),
    "op without a kernel": (lambda x: torch.linalg.svdvals(x) + 1, X, "svd"),
    "its way out": (lambda x: torch.linalg.svdvals(x), X, "explain"),
    "python on values": (lambda x: x if x.sum() > 0 else -x, X, "one graph.*Data-dependent"),
    "item": (lambda x: x * x.max().item(), X, "cannot be part of a plan"),
    "print": (lambda x: [print(x), x][1], X, "one graph"),
    "number returned": (lambda x: (x + 1, x.shape[0]), X, "returns int as 1; only tensors"),
    "nothing computed": (lambda x: x, X, "computes nothing"),
    "input written": (lambda x: x.add_(1), X, "input x is written in place; clone it"),
    "view of an input written": (_write_view, X, "x.*(written|writes a view)"),
    "list as input": (lambda x: x[0] + 1, ([X],), "the input x is a list"),
    "wrong arguments": (lambda x, y: x + y, (X,), "missing a required argument: 'y'"),
    "tensor of the CPU": (lambda x: x + OUTSIDE, X, r"CPU"),
    "training": (nn.Linear(4, 4), X, r"training mode; call .eval\(\)"),
    "forward": (Module(lambda self, x: (x * self.weight).tolist()).eval(), X, "one graph"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path) -> None:
    program, inputs, message = PROGRAMS[name]
    with pytest.raises(ExportError, match=f"(?s){message}"):
        export(program, inputs, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_float64(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedDTypeError, match="float64"):
        export(lambda x: x + 1, X.double(), tmp_path / "out")


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"maxTextureSize": 1 << 20}, "'maxTextureSize' is none that kernels look at"),
        ({"maxBufferSize": 1 << 20}, "maxBufferSize=1048576 is below 268435456, which every device grants"),
    ],
)
def test_limits(limits: dict[str, int], message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=message):
        export(lambda x: x + 1, X, tmp_path / "out", limits=limits)


def test_shard_size(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="between 131072 and 134217728"):
        export(lambda x: x + 1, X, tmp_path / "out", shard_bytes=1 << 16)
    with pytest.raises(ExportError, match="between"):
        Shards(tmp_path, 1 << 28)


# ---------------------------------------------------------------------------------------------------- small targets


def bundle_for(program: Callable[..., Any], tensors: dict[str, Tensor], folder: Path, **limits: int) -> Any:
    """A bundle for a target whose limits are far below the specification's."""
    towards = [DescribedTarget((), DEFAULT_LIMITS | limits)]
    inputs = {name: t.to("webgpu") for name, t in tensors.items()}
    parameters = {k: p for k, p in inputs.items() if k.startswith("weight")}
    bundler = Bundler(towards, lambda: parameters)
    call = Capture(program, towards, "program")((), inputs)
    bundler.add("run", call, {k: t for k, t in inputs.items() if k not in parameters})
    return bundler.write(folder, "program")


def test_windows(tmp_path: Path) -> None:
    """A table larger than a binding is bound in windows, in as many launches as it takes."""
    tensors = {"weight": torch.randn(3000, 24), "i": torch.tensor([0, 2999, 17, 1500, 1])}
    small = {"maxStorageBufferBindingSize": 64 << 10}
    made = bundle_for(lambda weight, i: F.embedding(i, weight), tensors, tmp_path / "out", **small)
    replayer = Replayer(tmp_path / "out")
    sizes = [size for d in replayer.plans["run"].dispatches for _, _, size in d.bindings]
    assert max(sizes) <= 64 << 10 < tensors["weight"].nbytes
    got = replayer.run(i=tensors["i"])["output"]
    torch.testing.assert_close(got, tensors["weight"][tensors["i"]], rtol=0, atol=0)
    assert made.variants[0].limits == {}


def test_windows_of_a_linear_layer(tmp_path: Path) -> None:
    tensors = {"weight": torch.randn(2000, 24), "x": torch.randn(1, 24)}
    bundle_for(lambda weight, x: x @ weight.t(), tensors, tmp_path / "out", maxStorageBufferBindingSize=64 << 10)
    replayer = Replayer(tmp_path / "out")
    assert max(size for d in replayer.plans["run"].dispatches for _, _, size in d.bindings) <= 64 << 10
    torch.testing.assert_close(
        replayer.run(x=tensors["x"])["output"], tensors["x"] @ tensors["weight"].t(), rtol=1e-4, atol=1e-4
    )


def test_too_large_a_buffer(tmp_path: Path) -> None:
    tensors = {"weight": torch.randn(2000, 24), "x": torch.randn(24)}
    with pytest.raises(ExportError, match=r"weight takes 192000 bytes, a buffer of the target at most 65536.*quantised"):
        bundle_for(lambda weight, x: weight[3] * x, tensors, tmp_path / "out", maxBufferSize=64 << 10)
    assert not list(tmp_path.iterdir())


def test_too_large_a_result(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"run: results of \[100, 1000\] need 400128 bytes, .*65536"):
        bundle_for(lambda x: x.expand(100, 1000) * 2, {"x": torch.randn(1000)}, tmp_path / "out", maxBufferSize=64 << 10)
    assert not list(tmp_path.iterdir())


def test_larger_target(tmp_path: Path) -> None:
    """A variant says what it needs beyond the defaults, and only that."""
    program = lambda x: x.expand(80 << 20, 1) * 2  # noqa: E731
    with pytest.raises(ExportError, match=r"limits=\{'maxBufferSize': 335544320\}"):
        export(program, torch.ones(1, 1), tmp_path / "out")
    allowed = {"maxBufferSize": 1 << 30, "maxStorageBufferBindingSize": 512 << 20}
    made = export(program, torch.ones(1, 1), tmp_path / "out", limits=allowed)
    needed = 320 << 20
    assert [v.limits for v in made.variants] == [{"maxBufferSize": needed, "maxStorageBufferBindingSize": needed}]
