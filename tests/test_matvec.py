"""The matrix-vector kernel of decoding against float64 on the CPU, and the table that picks its shape."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from torch_webgpu.cli import app
from torch_webgpu.errors import LimitError
from torch_webgpu.kernels import measure, tuning
from torch_webgpu.kernels.matvec import Dense, Int4, Int8, Norm, Weight, kind_of, matvec, supports
from torch_webgpu.kernels.program import IDENTITY, Program, Step
from torch_webgpu.kernels.trials import Trial
from torch_webgpu.kernels.tuning import Choice, Entry
from torch_webgpu.recipe import Graph, Tensor
from torch_webgpu.runtime import device

DEVICE = "webgpu"
KINDS = ("float32", "float16", "bfloat16", "int8", "int8 groups", "int4", "int4 minimum")
#: One invocation a row; a part of a subgroup; beyond a subgroup of any size, so that K is split; staged and not.
CHOICES = (
    Choice(3, 1, 64),
    Choice(2, 4, 32, 2, True),
    Choice(1, 256, 256),
    Choice(4, 16, 64, 2),
    Choice(2, 128, 128, 1, True),
)
SILU = "({0} * sigmoid_({0}))"
GATED = Program(("f", "f"), (Step(SILU, (0,), ("f",), "f"), Step("({0} * {1})", (2, 1), ("f", "f"), "f")))
BIAS_RESIDUAL = Program.of("({0} + {1} + {2})", ("f", "f", "f"), ("f", "f", "f"), "f")


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass
class Stream:
    """Weights as tensors of the device and as numbers."""

    parts: list[torch.Tensor]
    exact: torch.Tensor
    build: Callable[[Sequence[Tensor]], Weight]


def stream(kind: str, n: int, k: int, seed: int = 1) -> Stream:
    g = torch.Generator().manual_seed(seed)
    if kind.startswith("int8"):
        groups = k // 32 if "groups" in kind else 1
        q = torch.randint(-128, 128, (n, k), generator=g, dtype=torch.int8)
        scale = (torch.rand(n, groups, generator=g) * 0.02 + 0.001).half()
        exact = q.double() * scale.double().repeat_interleave(k // groups, 1)
        return Stream([q, scale], exact, lambda t: Int8(*t))
    if kind.startswith("int4"):
        q = torch.randint(0, 16, (n, k), generator=g)
        scale = (torch.rand(n, k // 32, generator=g) * 0.2 + 0.01).half()
        minimum = (torch.randn(n, k // 32, generator=g)).half()
        words = (q.view(n, k // 8, 8) << (4 * torch.arange(8))).sum(-1)
        packed = torch.where(words >= 2**31, words - 2**32, words).int()
        wide = scale.double().repeat_interleave(32, 1)
        if "minimum" in kind:
            exact = q.double() * wide + minimum.double().repeat_interleave(32, 1)
            return Stream([packed, scale, minimum], exact, lambda t: Int4(*t))
        return Stream([packed, scale], (q.double() - 8) * wide, lambda t: Int4(*t))
    w = torch.randn(n, k, generator=g).to(getattr(torch, kind))
    return Stream([w], w.double(), lambda t: Dense(*t))


def normed(x: torch.Tensor, gain: torch.Tensor | None, eps: float) -> torch.Tensor:
    x = x.double()
    x = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    return x if gain is None else x * gain.double()


def run(
    x: torch.Tensor,
    streams: Sequence[Stream],
    out: torch.Tensor,
    choice: Choice | None = None,
    program: Program = IDENTITY,
    extras: Sequence[torch.Tensor | float] = (),
    gain: torch.Tensor | None = None,
    norm: bool = False,
) -> torch.Tensor:
    """One launch on the device; ``x``, ``out`` and tensors among the extras may be views on the device already."""
    tensors = [x, *(p for s in streams for p in s.parts), *(e for e in extras if isinstance(e, torch.Tensor))]
    if gain is not None:
        tensors.append(gain)

    def record(graph: Graph, inputs: list[Tensor], target: Tensor, number: Any) -> None:
        rest = list(inputs)
        first = rest.pop(0)
        weights = [s.build([rest.pop(0) for _ in s.parts]) for s in streams]
        more = [rest.pop(0) if isinstance(e, torch.Tensor) else e for e in extras]
        before = Norm(rest.pop(0) if gain is not None else None, number) if norm else None
        matvec(graph, first, weights, target, program=program, extras=more, norm=before, choice=choice)

    return Trial(record)([t.to(DEVICE) for t in tensors], out, 1e-3)


def close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype = torch.float32) -> None:
    tolerance = {torch.float32: 3e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    error = (got.cpu().double() - want).abs().max().item() / max(want.abs().max().item(), 1e-30)
    assert error < tolerance, error


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_norm_product_bias_residual(kind: str, choice: Choice) -> None:
    n, k = 70, 352  # neither is a multiple of what teams and blocks cover
    x, gain, bias, residual = noise(1, k), noise(k, seed=2), noise(n, seed=3), noise(1, n, seed=4)
    weights = stream(kind, n, k)
    got = run(x, [weights], torch.empty(1, n, device=DEVICE), choice, BIAS_RESIDUAL, [bias, residual], gain=gain, norm=True)
    close(got, normed(x, gain, 1e-3) @ weights.exact.T + bias + residual)


@pytest.mark.parametrize("choice", (Choice(1, 64, 64, 2), Choice(2, 8, 64, 1, True), Choice(1, 1, 64)), ids=str)
@pytest.mark.parametrize("kind", ("float16", "int4 minimum"))
def test_without_subgroups(kind: str, choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device(), "features", ())
    n, k = 37, 224
    x, weights = noise(2, k), stream(kind, n, k)
    got = run(x, [weights], torch.empty(2, n, device=DEVICE), choice, norm=True)
    close(got, normed(x, None, 1e-3) @ weights.exact.T)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
@pytest.mark.parametrize("kind", ("int8", "int8 groups", "int4", "int4 minimum"))
def test_fixed_point(kind: str, dtype: torch.dtype) -> None:
    """Integer products: each element is off by half a unit at most, a 2^13th of its block's largest value."""
    n, k, block = 70, 352, 16 if kind.startswith("int8") else 32
    a, b, gain, residual = stream(kind, n, k), stream(kind, n, k, seed=5), noise(k, seed=2).to(dtype), noise(n, seed=3)
    for m, choice in ((1, Choice(2, 8, 32, 1, True, True)), (3, Choice(1, 32, 64, 2, True, True))):
        x = (noise(m, k) * torch.logspace(-8, 4, k)).to(dtype)
        got = run(x, [a], torch.empty(m, n, device=DEVICE), choice, gain=gain, norm=True)
        exact = normed(x, gain, 1e-3)
        most = (x.double() * gain.double()).abs().view(m, -1, block).amax(-1)
        inverse = (x.double().square().mean(-1, keepdim=True) + 1e-3).rsqrt()
        unit = 2.0 ** (most.log2().floor() - 13) * inverse
        bound = unit.repeat_interleave(block, 1) / 2 @ a.exact.abs().T
        error = (got.cpu().double() - exact @ a.exact.T).abs()
        assert (error <= bound * 1.01).all() and error.max() > bound.max() / 1e3  # the latter: it was not float arithmetic
        # Without a gain: two weights of three buffers each leave no more under the specification's limits.
        gated, plain = run(x, [a, b], torch.empty(m, n, device=DEVICE), choice, GATED, norm=True), normed(x, None, 1e-3)
        want = torch.nn.functional.silu(plain @ a.exact.T) * (plain @ b.exact.T)
        assert (gated.cpu().double() - want).abs().max() < 1e-3 * want.abs().max()
    x = noise(1, k).to(dtype)
    x[0, 32:64] = x[0, 32:64].mul(64).round().clamp(64, 255)  # a block whose values are exact in fixed point
    x[0, :32] = x[0, 64:] = 0
    got = run(x, [a], torch.empty(1, n, device=DEVICE), Choice(2, 8, 32, 1, True, True), BIAS_RESIDUAL, [residual, 1.0])
    close(got, x.double() @ a.exact.T + residual + 1)


@pytest.mark.parametrize("kind", ("int8", "int4 minimum"))
def test_fixed_point_of_extremes(kind: str) -> None:
    n, k, choice = 6, 64, Choice(1, 4, 32, 1, True, True)
    weights = stream(kind, n, k)
    for value in (1e-30, 3e38):
        x = torch.full((1, k), value, dtype=torch.bfloat16)
        got = run(x, [weights], torch.empty(1, n, device=DEVICE), choice).cpu().double()
        want = x.double() @ weights.exact.T
        finite = want.abs() < torch.finfo(torch.float32).max / 64  # partial sums are greater
        assert torch.allclose(got[finite], want[finite], rtol=1e-4)
    for value in (torch.nan, torch.inf):
        x = torch.ones(1, k, dtype=torch.float16)
        x[0, 5] = value
        assert run(x, [weights], torch.empty(1, n, device=DEVICE), choice).cpu().isfinite().logical_not().all()


@pytest.mark.parametrize("m", (1, 2, 3, 5, 8))
def test_rows_of_x(m: int) -> None:
    n, k = 24, 64
    x, a, b = noise(m, k), stream("float16", n, k), stream("float16", n, k, seed=5)
    for dtype in (torch.float32, torch.float16):
        got = run(x, [a, b], torch.empty(m, n, device=DEVICE, dtype=dtype), Choice(2, 8, 32), GATED)
        close(got, torch.nn.functional.silu(x.double() @ a.exact.T) * (x.double() @ b.exact.T), dtype)


@pytest.mark.parametrize("kind", ("float32", "float16", "bfloat16", "int8"))
def test_any_length(kind: str) -> None:
    for k in (1, 2, 3, 7, 31, 33, 130):
        x, weights = noise(1, k).half(), stream(kind, 5, k)
        got = run(x, [weights], torch.empty(1, 5, device=DEVICE), Choice(2, 16, 32, 2))
        close(got, x.double() @ weights.exact.T)


@pytest.mark.parametrize("kind", KINDS)
def test_unaligned_operands(kind: str) -> None:
    """Weights, x and gain that begin off the multiples of 16 bytes, rows of x with a gap."""
    n, k = 6, 64
    weights = stream(kind, n, k)
    w = weights.parts[0]
    room = torch.zeros(w.numel() + 5, dtype=w.dtype, device=DEVICE)
    for offset in (0, 1, 5):
        here = room[offset : offset + w.numel()].view(w.shape)
        here.copy_(w)
        moved = Stream([here, *weights.parts[1:]], weights.exact, weights.build)
        wide = noise(2, k + 3).to(DEVICE)[:, offset % 4 : offset % 4 + k]
        gain = noise(k + 1, seed=7).to(DEVICE)[offset % 2 : offset % 2 + k]
        choice = Choice(1, 4, 32, 2, stage=offset == 1)
        got = run(wide, [moved], torch.empty(2, n, device=DEVICE), choice, gain=gain, norm=True)
        close(got, normed(wide.cpu(), gain.cpu(), 1e-3) @ weights.exact.T)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16))
@pytest.mark.parametrize("rows", (1, 4))
def test_stores(dtype: torch.dtype, rows: int) -> None:
    """Transposed, gapped, odd and unaligned results leave what lies around them alone."""
    k = 32
    for m, n in ((1, 9), (2, 10), (3, 8)):
        x, weights = noise(m, k).to(dtype), stream("float16", n, k)
        want = x.double() @ weights.exact.T
        room = torch.full((12, 13), 7.0, dtype=dtype, device=DEVICE)
        for view in (
            lambda r, m=m, n=n: r[:m, 1 : n + 1],
            lambda r, m=m, n=n: r[:n, :m].T,
            lambda r, m=m, n=n: r[2 : m + 2, :n],
        ):
            room.fill_(7.0)
            run(x, [weights], view(room), Choice(rows, 4, 16))
            host = room.cpu()
            close(view(host), want, dtype)
            view(host).fill_(7.0)
            assert bool((host == 7.0).all())


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16))
@pytest.mark.parametrize("stage", (False, True))
def test_one_arena(dtype: torch.dtype, stage: bool) -> None:
    """x, residual and result are views of one buffer; the result replaces the residual."""
    n = k = 128
    x, residual, weights = noise(1, k).to(dtype), noise(1, n, seed=9).to(dtype), stream("float16", n, k)
    arena = torch.zeros(512, dtype=dtype, device=DEVICE)
    first, second = arena[:k].view(1, k), arena[256 : 256 + n].view(1, n)
    first.copy_(x)
    second.copy_(residual)
    add = Program.of("({0} + {1})", ("f", "f"), ("f", "f"), "f")
    run(first, [weights], second, Choice(2, 16, 64, 1, stage), add, [second], norm=True)
    close(second, normed(x, None, 1e-3) @ weights.exact.T + residual.double(), dtype)
    assert torch.equal(first.cpu(), x)


def test_infinite_weight_stays_in_its_row() -> None:
    k = 40  # the last block of a team reaches beyond the row
    x, weights = noise(1, k), stream("float32", 4, k)
    weights.parts[0][1, k - 1] = float("inf")
    got = run(x, [weights], torch.empty(1, 4, device=DEVICE), Choice(1, 32, 32, 2)).cpu()
    assert got[0, 1] == torch.inf * x[0, k - 1].sign()
    close(got[:, [0, 2, 3]], (x.double() @ weights.exact.T)[:, [0, 2, 3]])


def test_windows_of_large_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    n, k = 300, 64
    x, weights, bias = noise(2, k), stream("int8 groups", n, k), noise(n, seed=3)
    add = Program.of("({0} + {1})", ("f", "f"), ("f", "f"), "f")
    monkeypatch.setitem(device().limits, "maxStorageBufferBindingSize", 8192)
    launches: list[int] = []
    launch = Graph.launch

    def counted(self: Graph, *args: Any) -> None:
        launches.append(1)
        launch(self, *args)

    monkeypatch.setattr(Graph, "launch", counted)
    got = run(x, [weights], torch.empty(2, n, device=DEVICE), None, add, [bias])
    assert len(launches) == 4
    close(got, x.double() @ weights.exact.T + bias)


def test_grid_of_two_dimensions() -> None:
    n, k = 70000, 4
    x, weights = noise(1, k), stream("float32", n, k)
    got = run(x, [weights], torch.empty(1, n, device=DEVICE), Choice(1, 4, 4))
    close(got, x.double() @ weights.exact.T)


def test_numbers_and_classes_in_programs() -> None:
    n, k = 12, 16
    x, weights, mask = noise(1, k), stream("float32", n, k), noise(1, n, seed=3) > 0
    program = Program.of("select({1}, {0}, {2})", ("f", "f", "b"), ("f", "f", "b"), "f")
    got = run(x, [weights], torch.empty(1, n, device=DEVICE), None, program, [-3.5, mask])
    close(got, torch.where(mask, x.double() @ weights.exact.T, -3.5))


def tensor(*sizes: int, dtype: torch.dtype = torch.float32, buffer: str = "", offset: int = 0) -> Tensor:
    from torch_webgpu.recipe import contiguous_strides
    from torch_webgpu.wgsl import BY_TORCH

    return Tensor(0, buffer or object(), BY_TORCH[dtype], sizes, contiguous_strides(sizes), 0, offset)


def test_what_is_not_supported() -> None:
    x, out, w = tensor(1, 64), tensor(1, 8), Dense(tensor(8, 64))
    packed, scale = tensor(8, 8, dtype=torch.int32), tensor(8, 2, dtype=torch.float16)
    assert supports(x, [w], out) and supports(x, [Int4(packed, scale)], out)
    graph = Graph("mm")
    for case, words in (
        ((tensor(9, 64), [w], tensor(9, 8)), "M from 1 to 8"),
        ((x, [Dense(tensor(8, 63))], out), "shape"),
        ((x, [Dense(tensor(8, 64, dtype=torch.int32))], out), "float32 or float16"),
        ((x, [w, Int8(tensor(8, 64, dtype=torch.int8), tensor(8, 1))], out), "one kind"),
        ((x, [Int4(packed, tensor(8, 4, dtype=torch.float16))], out), "each 32"),
        ((x, [], out), "at least one"),
        ((tensor(1, 64, dtype=torch.int32), [w], out), "float matrices"),
        ((tensor(1, 64, buffer="a"), [w], tensor(1, 8, buffer="a", offset=60)), "overlaps"),
        (
            (x, [Dense(tensor(8, 64).transpose(0, 1).transpose(0, 1)), Dense(tensor(64, 8).transpose(0, 1))], out),
            "contiguous",
        ),
    ):
        assert not supports(*case)
        with pytest.raises(RuntimeError, match=words):
            matvec(graph, *case)
    many = [Dense(tensor(8, 64)) for _ in range(device().limits["maxStorageBuffersPerShaderStage"])]
    assert not supports(x, many, out)
    with pytest.raises(LimitError, match="largest binding"):
        matvec(graph, tensor(1, 1 << 23), [Dense(tensor(64, 1 << 23))], tensor(1, 64))
    assert not supports(x, [w], out, [tensor(1, 7)]) and not supports(x, [w], out, [tensor(1, 1, 8)])
    assert supports(x, [w], tensor(1, 8, buffer="a"), [tensor(8, 8, buffer="a").narrow(0, 0, 1)])
    assert not supports(x, [w], tensor(1, 8, buffer="a"), [tensor(1, 8, buffer="a", offset=1)])
    assert not supports(x, [w], out, norm=Norm(tensor(63), 1e-6)) and supports(x, [w], out, norm=Norm(tensor(64), 1e-6))
    with pytest.raises(RuntimeError, match="takes 3 inputs"):
        matvec(graph, x, [w], out, program=BIAS_RESIDUAL)


# ---------------------------------------------------------------------------------------------------- choices


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty user table."""
    path = tmp_path / "matvec.json"
    monkeypatch.setattr(tuning, "user_file", lambda: path)
    monkeypatch.setattr(tuning, "SHIPPED", tmp_path / "shipped.json")
    tuning.forget()
    yield path
    monkeypatch.undo()
    tuning.forget()


def entry(choice: Choice, n: int = 896, k: int = 896, adapter: str = "cpu", implementation: str = "", m: int = 1) -> Entry:
    return Entry(adapter, implementation, "float16", n, k, 1, m, choice)


def test_nearest_entry_is_chosen(table: Path) -> None:
    here = device().adapter.implementation
    a, b, c, d = (Choice(rows, 8, 64) for rows in (1, 2, 3, 4))
    other = "dawn" if here == "wgpu" else "wgpu"
    pattern = tuning.adapter_name()
    entries = [entry(a, adapter=pattern), entry(b, 4864, adapter=pattern), entry(c, adapter="no such adapter")]
    tuning.write(table, [*entries, entry(d, adapter=pattern, implementation=other)])
    assert tuning.choose("float16", 900, 1000) == a
    assert tuning.choose("float16", 4000, 900) == b
    assert tuning.choose("float16", 4864 * 5, 896) == tuning.rule("float16", 4864 * 5, 896)
    assert tuning.choose("float32", 896, 896) == tuning.rule("float32", 896, 896)
    assert tuning.choose("float16", 896, 896, 1, 2) == tuning.rule("float16", 896, 896, 1, 2)
    tuning.write(table, [entry(d, adapter=pattern, implementation=here)])  # the same product, for this implementation
    assert tuning.choose("float16", 896, 896) == d
    tuning.write(table, [entry(c, adapter=pattern, implementation=here)])
    assert tuning.choose("float16", 896, 896) == c
    assert len(json.loads(table.read_text())["entries"]) == 5


@pytest.mark.parametrize("text", ("", "{", '{"entries": [{"n": 1}]}', "[]", '{"entries": [5]}'))
def test_corrupt_table_is_ignored_with_a_warning(table: Path, text: str) -> None:
    table.write_text(text)
    with pytest.warns(UserWarning, match="is ignored"):
        assert tuning.choose("float16", 896, 896) == tuning.rule("float16", 896, 896)
    with pytest.warns(UserWarning, match="is ignored"):
        tuning.write(table, [entry(Choice(4, 8, 64), adapter=tuning.adapter_name())])
    assert tuning.choose("float16", 896, 896) == Choice(4, 8, 64)


def test_shipped_table_is_sound() -> None:
    entries = tuning.read(tuning.SHIPPED)
    assert len({e.key for e in entries}) == len(entries)


def test_rule_fits_every_shape(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for adapter_kind in ("cpu", "discrete"):
        monkeypatch.setattr(device().adapter, "kind", adapter_kind)
        for kind in tuning.BLOCK:
            for n, k, streams, m in (
                (1, 1, 1, 1),
                (896, 896, 1, 1),
                (9728, 896, 2, 8),
                (151936, 1536, 1, 3),
                (64, 65536, 4, 8),
            ):
                choice = tuning.rule(kind, n, k, streams, m)
                assert choice.workgroup <= 256 and choice.rows * streams * m <= 32
    with pytest.raises(ValueError, match="not a shape"):
        Choice(1, 3, 64)


def test_table_shape_is_made_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device().limits, "maxComputeWorkgroupStorageSize", 2048)
    monkeypatch.setitem(device().limits, "maxComputeInvocationsPerWorkgroup", 64)
    n, k = 34, 1024
    x, weights = noise(4, k), stream("float32", n, k)
    got = run(x, [weights], torch.empty(4, n, device=DEVICE), Choice(4, 128, 256, 2, True), norm=True)
    close(got, normed(x, None, 1e-3) @ weights.exact.T)
    assert kind_of(Dense(tensor(1, 1))) == "float32"


def test_search_finds_and_writes_a_choice(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_COLD_CPU", 1 << 16)
    tried: list[Choice] = []
    product = measure.Product("int4", 64, 32, 2, epilogue="gated", norm=True)
    timed = measure.search(measure.Bench(product), 0.0, lambda choice, us: tried.append(choice))
    assert len(timed) == 1 and list(timed) == tried and all(us > 0 for us in timed.values())
    tuning.write(table, [measure.entry(product, timed)])
    assert tuning.choose("int4", 32, 64, 2) == tried[0]
    assert product.bytes == 2 * 32 * (32 + 2 * 4)


def test_tune_command(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_COLD_CPU", 1 << 16)
    monkeypatch.setattr(measure, "ENOUGH", 1)
    done = CliRunner().invoke(app, ["tune", "--shapes", "64x32,64x32x2", "--kind", "float16", "--time-limit", "1"])
    assert done.exit_code == 0, done.output
    assert "float16 64→32" in done.stdout and str(table) in done.stdout
    assert {(e.k, e.n, e.streams) for e in tuning.read(table)} >= {(64, 32, 1)}
    for shape in ("64", "64x", "63x4", "64x4x2x2", "axb"):
        assert CliRunner().invoke(app, ["tune", "--shapes", shape]).exit_code == 2


def test_candidates_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shape is one that the kernel has, and the small products keep some."""
    monkeypatch.setattr(device().adapter, "kind", "discrete")
    for kind in tuning.BLOCK:
        for k, n, streams in ((64, 32, 1), (896, 896, 1), (4864, 896, 1), (896, 151936, 1), (896, 4864, 2)):
            product = measure.Product(kind, k, n, streams)
            found = list(measure.candidates(product, packed=True))
            assert (10 if k > 64 else 2) <= len(found) <= 16
            assert all(list(measure.neighbours(choice, product)) for choice in found)
