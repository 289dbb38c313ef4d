"""Bundles for browsers: values (replayed without the device), files, sizes, state, randomness, windows of large tensors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from models import efficientnet_lite0, sample_pixels
from replaying import Replayer
from torch import Tensor, nn
from typer.testing import CliRunner
from web_bundles import mlp, numbers, small_conv

from torch_webgpu.cli import app
from torch_webgpu.errors import ExportError
from torch_webgpu.web import bundle, export

pytestmark = pytest.mark.once  # kernels are chosen for devices that are elsewhere, and replayed by another package


def compare(got: dict[str, Tensor], want: list[Tensor], tolerance: float = 0.0) -> None:
    assert len(got) == len(want)
    for mine, theirs in zip(got.values(), want, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=tolerance, atol=tolerance, equal_nan=True)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def constants(x: Tensor) -> Tensor:
    return x + torch.tensor([1.0, 2.0, 3.0], device=x.device) * torch.arange(3, device=x.device)


class Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(numbers(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, self.weight


BYTES = torch.arange(13).byte()


class Nested(nn.Module):
    def forward(self, x: Tensor, scale: float = 2.0) -> dict[str, Any]:
        return {"twice": x * scale, "parts": (x[1:], x.t()), "same": x}


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], float]] = {
    "pointwise": (lambda x, y: ((x * y + 1).relu(), x > y), (numbers(3, 5), numbers(5)), 0.0),
    "mlp": (mlp(), (numbers(3, 24),), 1e-5),
    "mlp-f16": (mlp(torch.float16), (numbers(3, 24, dtype=torch.float16),), 4e-3),
    "bf16": (lambda x: (x * 3, x.sum(1)), (numbers(3, 8, dtype=torch.bfloat16),), 0.0),
    "conv": (small_conv(), (numbers(2, 3, 9, 11),), 1e-5),
    "attention": (attend, (numbers(1, 2, 6, 8), numbers(1, 2, 6, 8), numbers(1, 2, 6, 8)), 1e-5),
    "indexing": (lambda x, i: (x[i], x.gather(0, i + 2), x.argsort()), (numbers(7), torch.tensor([1, 4, -2])), 0.0),
    "int64": (lambda i: (i * 3 + (1 << 40), i.cumsum(0), i // 7), (torch.tensor([5, -(1 << 35), (1 << 33) + 1]),), 0.0),
    "bytes": (lambda a, b: (a & b, a.to(torch.int64).sum(), (a > 9)), (BYTES, BYTES * 3), 0.0),
    "views": (lambda x: (x.t() + 1, x[1:, ::2]), (numbers(4, 6),), 0.0),
    "constants": (constants, (numbers(3),), 0.0),
    "input returned": (lambda x, y: (x + 1, y), (numbers(3), numbers(4)), 0.0),
    "weight returned": (Kept().eval(), (numbers(3),), 0.0),
    "scalar": (lambda x: x.amax() - x.mean(), (numbers(300),), 1e-6),
    "long": (lambda x: torch.cat([x.sum(0, keepdim=True), x.sort(0).values]), (numbers(3000, 2),), 1e-4),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str, tmp_path: Path) -> None:
    """Each variant gives what PyTorch gives on the CPU."""
    program, inputs, tolerance = PROGRAMS[name]
    made = export(program, inputs, tmp_path / "out")
    want = program(*inputs)
    for variant in made.variants:
        replayer = Replayer(tmp_path / "out", variant.name)
        names = [t.name for t in replayer.plans["run"].inputs]
        got = replayer.run(**dict(zip(names, inputs, strict=True)))
        compare(got, [want] if isinstance(want, Tensor) else list(want), tolerance)


def test_nested_results(tmp_path: Path) -> None:
    """Results are called by their path; those that share memory are described in one buffer."""
    x = numbers(3, 4)
    export(Nested().eval(), {"x": x, "scale": 3.0}, tmp_path / "out")
    got = Replayer(tmp_path / "out").run(x=x)
    assert list(got) == ["twice", "parts.0", "parts.1", "same"]
    compare(got, [x * 3.0, x[1:], x.t(), x])


def test_efficientnet(tmp_path: Path) -> None:
    """EfficientNet-Lite0 from the command line: the five likeliest classes are the CPU's, and have names."""
    out = tmp_path / "out"
    told = CliRunner().invoke(app, ["export", "--model", "efficientnet", "--out", str(out), "--shard", "4"])
    assert told.exit_code == 0, told.output
    assert "EfficientNet-Lite0" in told.output and "runs on every WebGPU device" in told.output
    replayer = Replayer(out)
    assert sum(f.endswith(".safetensors") for f in replayer.bundle.files) > 4
    image = replayer.bundle.image
    assert image is not None
    mean, deviation = (torch.tensor(v).view(3, 1, 1) for v in (image.mean, image.deviation))
    model, picture = efficientnet_lite0(), ((sample_pixels() - mean) / deviation)[None]
    with torch.no_grad():
        want = model(picture)
    assert (image.input, image.output) == ("picture", "output")
    got = replayer.run(picture=picture)["output"]
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
    assert got.topk(5).indices.tolist() == want.topk(5).indices.tolist()
    labels = json.loads((out / image.labels).read_text())
    assert len(labels) == 1000
    assert "military uniform" in [labels[i] for i in got[0].topk(5).indices.tolist()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "efficientnet", "--dtype", "int4"], "efficientnet can be f32 or f16"),
        (["--model", "efficientnet", "--context", "9"], "--context is for language models"),
        (["--model", "smollm2", "--limit", "maxBufferSize"], "NAME=VALUE"),
        (["--model", "smollm2", "--limit", "maxTextures=9"], "none that kernels look at"),
        (["--model", "no/such-model.gguf"], "There is no file"),
    ],
)
def test_command_errors(arguments: list[str], message: str, tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["export", *arguments, "--out", str(tmp_path / "out")])
    assert told.exit_code == 2 and message in told.output
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------------------------------- state


class Mean(nn.Module):
    """The mean of all rows so far; what it keeps is written in place, some of it in part."""

    total: Tensor
    rows: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("rows", torch.zeros(4, 3))
        self.register_buffer("count", torch.tensor([1], dtype=torch.int64))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(x)
        self.rows.index_copy_(0, self.count, x[None])
        self.count.add_(1)
        return self.scale * self.total / self.count + self.rows.sum(0)


def test_state(tmp_path: Path) -> None:
    """What a module keeps is state: it starts as it was exported, and goes on from run to run."""
    made = export(Mean().eval(), numbers(3), tmp_path / "out")
    assert {b.name: b.role for b in made.buffers} == {
        "total": "state", "rows": "state", "count": "state", "scale": "weight", "x": "input"
    }  # fmt: skip
    assert not next(b for b in made.buffers if b.name == "rows").data  # zeros are not stored
    reference, replayer = Mean(), Replayer(tmp_path / "out")
    for step in range(3):
        x = numbers(3) + step
        compare(replayer.run(x=x), [reference(x)], 1e-6)
    assert replayer.buffer("count")[:8] == (4).to_bytes(8, "little")


def test_random(tmp_path: Path) -> None:
    """Each run draws further along one stream, the device's own for the seed."""
    program = lambda x: torch.rand_like(x) + torch.nn.functional.dropout(x, 0.5)  # noqa: E731
    x = numbers(5, 7)
    export(program, (x,), tmp_path / "out")
    replayer = Replayer(tmp_path / "out")
    replayer.seed = 11
    got = [replayer.run(x=x)["output"] for _ in range(2)]
    assert not torch.equal(*got)
    compiled = torch.compile(program, backend="webgpu")
    torch.get_device_module("webgpu").manual_seed(11)
    compare({"0": got[0], "1": got[1]}, [compiled(x.to("webgpu")).cpu() for _ in range(2)])


def test_kernels_report(tmp_path: Path) -> None:
    """An index out of range is reported with its message, and the next run is right."""
    export(lambda x, i: x[i], (numbers(5), torch.tensor([0, 1])), tmp_path / "out")
    replayer = Replayer(tmp_path / "out")
    with pytest.raises(RuntimeError, match=r"index 7 is out of .* size 5"):
        replayer.run(x=numbers(5), i=torch.tensor([3, 7]))
    compare(replayer.run(x=numbers(5), i=torch.tensor([3, -5])), [numbers(5)[[3, 0]]])


# ---------------------------------------------------------------------------------------------------- sizes


def test_sizes(tmp_path: Path) -> None:
    """A plan for each size, ascending; dimensions change together, and all share their buffers."""
    program = lambda x, y: (x @ y).relu().sum(0)  # noqa: E731
    sizes: dict[str, Any] = {"x": {0: (9, 2, 4)}, "y": {1: (3, 6, 5)}}
    made = export(program, (numbers(4, 8), numbers(8, 5)), tmp_path / "out", dynamic=sizes)
    replayer = Replayer(tmp_path / "out")
    shapes = {name: [t.shape for t in plan.inputs] for name, plan in replayer.plans.items()}
    assert shapes == {"run": [[2, 8], [8, 6]], "run-2": [[4, 8], [8, 5]], "run-3": [[9, 8], [8, 3]]}
    assert [b.role for b in made.buffers] == ["input", "input"]
    for name in ("run-3", "run", "run-2"):
        x, y = (numbers(*shape) for shape in shapes[name])
        compare(replayer.run(name, x=x, y=y), [program(x, y)], 1e-5)


WRONG_SIZES: dict[str, tuple[Any, str]] = {
    "name": ({"z": {0: (1, 2)}}, r"'z' is no tensor among the inputs \(x, y\)"),
    "constant": ({"k": {0: (1, 2)}}, "'k' is no tensor"),
    "dimension": ({"x": {2: (1, 2)}}, "x has 2 dimensions"),
    "none": ({"x": {0: ()}}, "sizes are positive"),
    "zero": ({"x": {0: (0, 2)}}, "sizes are positive"),
    "unequal": ({"x": {0: (1, 2)}, "y": {0: (1, 2, 3)}}, "as many sizes as the others"),
    "many": ({"x": {0: tuple(range(1, 70))}}, "64 at most"),
}


@pytest.mark.parametrize("name", WRONG_SIZES)
def test_wrong_sizes(name: str, tmp_path: Path) -> None:
    dynamic, message = WRONG_SIZES[name]
    with pytest.raises(ValueError, match=message):
        export(lambda x, y, k: x * k + y, (numbers(4, 3), numbers(4, 3), 2.0), tmp_path / "out", dynamic=dynamic)
    assert not list(tmp_path.iterdir())


def test_sizes_that_do_not_fit(tmp_path: Path) -> None:
    """Sizes for which the program makes no sense are an error of the export, not of the page."""
    with pytest.raises(ExportError, match=r"(?s)3.*4|4.*3"):
        export(lambda x, y: x + y, (numbers(4, 3), numbers(4, 3)), tmp_path / "out", dynamic={"x": {1: (3, 4)}})


# ---------------------------------------------------------------------------------------------------- files


def test_files(tmp_path: Path) -> None:
    """All that is there is listed and checked; shards are safetensors files of the size asked for."""
    from safetensors.torch import load_file

    first = nn.Linear(256, 300)
    model = nn.Sequential(first, nn.Linear(300, 3)).eval()
    made = export(model, numbers(2, 256), tmp_path / "out", shard_bytes=128 << 10, name="two layers", about={"a": "b"})
    assert (made.name, made.about) == ("two layers", {"a": "b"})
    files = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert files == {*made.files, "bundle.json"}
    shards = sorted(f for f in files if f.endswith(".safetensors"))
    assert len(shards) > 4 and all(made.files[s].size <= 128 << 10 for s in shards)
    stored = {k: v for s in shards for k, v in load_file(tmp_path / "out" / s).items()}
    whole = torch.cat([stored[k] for k in sorted(k for k in stored if k.startswith("0.weight"))])
    torch.testing.assert_close(whole, first.weight.detach(), rtol=0, atol=0)
    assert bundle.read(tmp_path / "out") == made
    x = numbers(2, 256)
    compare(Replayer(tmp_path / "out").run(input=x), [model(x)], 1e-5)


@pytest.mark.parametrize("file", ["weights-00001.safetensors", "plans-base.json", "wgsl", "bundle.json"])
def test_damage(file: str, tmp_path: Path) -> None:
    made = export(nn.Linear(4, 4).eval(), numbers(2, 4), tmp_path / "out")
    path = tmp_path / "out" / next(f for f in (*made.files, "bundle.json") if f.startswith(file))
    path.write_bytes(path.read_bytes()[:-3] + b"###")
    with pytest.raises(ExportError, match="is damaged" if path.name != "bundle.json" else "no bundle of this version"):
        bundle.read(tmp_path / "out")


def test_weights_in_one_storage(tmp_path: Path) -> None:
    """Parameters that are tied, that overlap, or are parts of one storage, are stored once and read in place."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Parameter(numbers(6, 4))
            self.twin = self.base
            self.rows = nn.Parameter(self.base.data[1:4])
            self.columns = nn.Parameter(self.base.data.t()[1:])

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.base.t() @ self.twin @ self.rows.t() @ self.columns.t()[:3]

    model = Tied().to("webgpu").eval()
    made = export(model, numbers(2, 4), tmp_path / "out")
    assert sum(b.size for b in made.buffers if b.role == "weight") <= 3 * 256
    x = numbers(2, 4)
    compare(Replayer(tmp_path / "out").run(x=x), [model.cpu()(x)], 1e-4)


def test_folder(tmp_path: Path) -> None:
    """A bundle is replaced, anything else is left alone, and a failed export leaves the old bundle."""
    out = tmp_path / "out"
    export(lambda x: x + 1, numbers(3), out)
    export(lambda x: x + 2, numbers(3), out)
    with pytest.raises(ExportError):
        export(lambda x: x.nonzero(), numbers(3), out)
    compare(Replayer(out).run(x=numbers(3)), [numbers(3) + 2])
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(ExportError, match="is not empty and holds no bundle"):
        export(lambda x: x + 1, numbers(3), other)
    with pytest.raises(ExportError, match="is a file"):
        export(lambda x: x + 1, numbers(3), other / "thesis.txt")
    assert (other / "thesis.txt").read_text() == "years of work"
