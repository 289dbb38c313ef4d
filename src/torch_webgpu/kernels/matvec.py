"""Matrix-vector products of decoding: norm, product of few rows of x with weights read once, and arithmetic in one launch.

``out = program(x' @ W_0^T, x' @ W_1^T, ..., extras)`` where ``x'`` is x or its RMS norm. The norm costs no pass of its own:
the sum of squares is gathered beside the products and scales them at the end. Sums are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import wgsl
from ..errors import LimitError
from ..recipe import Graph, Scalar, Tensor, Words, grid
from ..runtime import target
from ..wgsl import F16, F32, cast
from . import render
from .pointwise import same_view
from .program import IDENTITY, Program
from .tuning import BLOCK, Choice, choose, is_quantised
from .weights import Dense, Int4, Int8, Weight, fault_of, kind_of, narrow_rows, tensors_of

__all__ = ["Choice", "Dense", "Extra", "Int4", "Int8", "Norm", "Weight", "kind_of", "matvec", "supports"]

MAX_ROWS = 8  # rows of x
_CUT = 64  # rows of the weights at whose multiples windows are cut
_SMALLEST_SUBGROUP = 4


@dataclass(frozen=True)
class Norm:
    """RMS norm of x before the product: ``x * rsqrt(mean(x^2) + eps) * gain``; gain [K] of any float dtype."""

    gain: Tensor | None
    eps: float | Scalar


Extra = Tensor | Scalar | float | int


def _overlap(a: Tensor, b: Tensor) -> bool:
    return a.buffer == b.buffer and a.offset < b.offset + b.extent and b.offset < a.offset + a.extent


def _broadcasts(t: Tensor, sizes: tuple[int, ...]) -> bool:
    return t.ndim <= len(sizes) and all(n in (1, m) for n, m in zip(reversed(t.sizes), reversed(sizes), strict=False))


def _fault(x: Tensor, weights: Sequence[Weight], out: Tensor, extras: Sequence[Extra], norm: Norm | None) -> str:
    """Why the kernel does not take this case, or an empty string."""
    if x.ndim != 2 or out.ndim != 2 or not x.dtype.is_float or not out.dtype.is_float:
        return f"x and out must be float matrices, got {x} and {out}"
    (m, k), n = x.sizes, out.sizes[1]
    if not 1 <= m <= MAX_ROWS or k < 1 or n < 1 or out.sizes[0] != m:
        return f"x [M, K] and out [M, N] with M from 1 to {MAX_ROWS} are needed, got {x} and {out}"
    if k > 1 and x.strides[1] != 1:
        return f"rows of x must be contiguous, got strides {list(x.strides)}"
    if not weights:
        return "at least one stream of weights is needed"
    fault = next(filter(None, (fault_of(weight, n, k) for weight in weights)), "")
    if fault:
        return fault
    if len({(kind_of(v), tuple((t.dtype, t.sizes) for _, t in tensors_of(v)[1:])) for v in weights}) > 1:
        return "all streams must have weights of one kind, with scales of one shape"
    more = [e for e in extras if isinstance(e, Tensor)]
    for e in more:
        if not _broadcasts(e, out.sizes):
            return f"the extra {e} does not broadcast to {list(out.sizes)}"
    operands = [t for weight in weights for _, t in tensors_of(weight)] + [x, *more]
    if norm is not None and norm.gain is not None:
        if norm.gain.sizes != (k,) or (k > 1 and norm.gain.strides[0] != 1) or not norm.gain.dtype.is_float:
            return f"the norm's gain must be a contiguous float vector of {k} elements, got {norm.gain}"
        operands.append(norm.gain)
    for t in operands:
        if _overlap(t, out) and (t is x or not same_view(t, out)):
            return f"out {out} overlaps the operand {t} in memory"
    limit = target().limits["maxStorageBuffersPerShaderStage"]
    buffers = len({t.buffer for t in (*operands, out)})
    if buffers > limit:
        return f"{buffers} buffers are needed, but a kernel may bind {limit}"
    limit = target().limits["maxStorageBufferBindingSize"]
    if not _fits(limit, [*(t.narrow(0, 0, min(n, _CUT)) for t in _cuttable(weights, out, extras)), x]):
        return f"{min(n, _CUT)} rows of the weights exceed the largest binding of {limit} bytes"
    return ""


def _cuttable(weights: Sequence[Weight], out: Tensor, extras: Sequence[Extra]) -> list[Tensor]:
    """Operands with N along a dimension: that dimension first, so that windows are cut there."""
    found = [t for weight in weights for _, t in tensors_of(weight)]
    return found + [t.transpose(0, 1) for t in (out, *(e.expand(out.sizes) for e in extras if isinstance(e, Tensor)))]


def _fits(limit: int, tensors: Sequence[Tensor]) -> bool:
    """Whether one launch may touch them: operands of one buffer share a binding that covers all of them."""
    low: dict[Any, int] = {}
    high: dict[Any, int] = {}
    for t in tensors:
        start = t.offset * t.dtype.itemsize
        low[t.buffer] = min(low.get(t.buffer, start), start)
        high[t.buffer] = max(high.get(t.buffer, 0), start + t.extent * t.dtype.itemsize)
    return all(high[b] - low[b] + 512 <= limit for b in low)


def supports(
    x: Tensor, weights: Sequence[Weight], out: Tensor, extras: Sequence[Extra] = (), norm: Norm | None = None
) -> bool:
    """Whether ``matvec`` takes the case; see there for shapes. Else the caller has to compute it another way."""
    return not _fault(x, weights, out, extras, norm)


def matvec(
    graph: Graph,
    x: Tensor,
    weights: Sequence[Weight],
    out: Tensor,
    *,
    program: Program = IDENTITY,
    extras: Sequence[Extra] = (),
    norm: Norm | None = None,
    choice: Choice | None = None,
) -> None:
    """``out = program(x' @ W_0^T, x' @ W_1^T, ..., extras)``.

    Args:
        x: [M, K], rows contiguous, M from 1 to 8; any float dtype.
        weights: streams of [N, K], all of one kind.
        out: [M, N] of any float dtype and strides; may share its buffer with operands, and elements only with an extra
            that is the very same view.
        program: its inputs are the streams' products (class ``f``), then the extras.
        extras: tensors of rank up to 2 that broadcast to [M, N], and numbers.
        norm: RMS norm of x before the products.
        choice: the shape of the kernel instead of the tuned one.

    Raises:
        RuntimeError: for operands that the kernel does not take (``supports`` says so beforehand).
        LimitError: where not even a few rows of the weights fit a binding.
    """
    fault = _fault(x, weights, out, extras, norm)
    if fault:
        raise (LimitError if "largest binding" in fault else RuntimeError)(f"{graph.op}: matvec: {fault}")
    if len(program.inputs) != len(weights) + len(extras):
        raise RuntimeError(
            f"{graph.op}: matvec: the program takes {len(program.inputs)} inputs, but {len(weights)} streams and "
            f"{len(extras)} extras are given"
        )
    wide = [e.expand(out.sizes) if isinstance(e, Tensor) else e for e in extras]
    _cut(graph, x, weights, out, program, wide, norm, choice)


def _cut(
    graph: Graph,
    x: Tensor,
    weights: Sequence[Weight],
    out: Tensor,
    program: Program,
    extras: list[Extra],
    norm: Norm | None,
    choice: Choice | None,
) -> None:
    """One launch, or several over windows of N where a binding does not cover an operand."""
    n = out.sizes[1]
    limit = target().limits["maxStorageBufferBindingSize"]
    if n <= _CUT or _fits(limit, [*_cuttable(weights, out, extras), x]):
        _Launch(x, weights, out, program, extras, norm, choice).record(graph)
        return
    half = -(-n // 2 // _CUT) * _CUT
    for start, length in ((0, half), (half, n - half)):
        part = [e.narrow(1, start, length) if isinstance(e, Tensor) else e for e in extras]
        windows = [narrow_rows(weight, start, length) for weight in weights]
        _cut(graph, x, windows, out.narrow(1, start, length), program, part, norm, choice)


def _quad_mode(t: Tensor, vector: bool, pieces: int, row_stride: int) -> str:
    """How blocks of x or the gain are read: four words at once (``v4``, or the function that unpacks two), or one by one."""
    words = 16 // t.dtype.itemsize
    if not vector or not t.aligned(16) or row_stride % words:
        return ""
    if t.dtype is F32:
        return "v4"
    return "" if pieces < 2 else "quad_f16" if t.dtype is F16 else "quad_bf16"


class _Launch:
    """One dispatch: everything that shapes the kernel, worked out once."""

    def __init__(
        self,
        x: Tensor,
        weights: Sequence[Weight],
        out: Tensor,
        program: Program,
        extras: Sequence[Extra],
        norm: Norm | None,
        choice: Choice | None,
    ) -> None:
        self.x, self.weights, self.out, self.program, self.extras, self.norm = x, weights, out, program, extras, norm
        (self.m, self.k), self.n, self.streams = x.sizes, out.sizes[1], len(weights)
        self.kind = kind_of(weights[0])
        element = BLOCK[self.kind]
        first = weights[0]
        groups = 0 if isinstance(first, Dense) else first.scale.sizes[1]
        self.scaled = "" if not groups else "row" if groups == 1 and self.kind == "int8" else "group"
        self.group = self.k // groups if groups else 1
        self.minimum = isinstance(first, Int4) and first.minimum is not None
        self.vector = (
            self.k % element == 0
            and all(self._rows_aligned(weight.weight) for weight in weights)
            and (self.scaled != "group" or self.group % element == 0)
        )
        self.pieces = element // 4 if self.vector else 1
        self.blocks = self.k // element if self.vector else self.k
        self.x_mode = _quad_mode(x, self.vector, self.pieces, x.strides[0] if self.m > 1 else 0)
        gain = norm.gain if norm is not None else None
        self.gain_mode = _quad_mode(gain, self.vector, self.pieces, 0) if gain is not None else ""
        self.norm_kind = "" if norm is None else "plain" if gain is None else "gain"
        self.subgroups = "subgroups" in target().features
        self.choice = self._fit(choice or choose(self.kind, self.n, self.k, self.streams, self.m))
        self.pack = 2 if self._whole_words() and self.choice.rows % 2 == 0 else 1

    @staticmethod
    def _rows_aligned(t: Tensor) -> bool:
        return t.aligned(16) and (t.sizes[0] == 1 or t.strides[0] * t.dtype.itemsize % 16 == 0)

    def _whole_words(self) -> bool:
        """Whether the launch owns all words of a packed ``out``, pairs along N."""
        o = self.out
        return (
            o.dtype.packed
            and o.strides[1] == 1
            and self.n % 2 == 0
            and o.aligned(4)
            and (self.m == 1 or o.strides[0] % 2 == 0)
        )

    # ------------------------------------------------------------------------------------------ shape of the kernel

    def _values(self, choice: Choice) -> list[str]:
        """Sums that a team works out."""
        sums = [f"a_{s}_{r}_{m}" for s in range(self.streams) for r in range(choice.rows) for m in range(self.m)]
        return sums + [f"sq_{m}" for m in range(self.m) if self.norm is not None]

    def _slots(self, choice: Choice) -> int:
        """Partial sums a value has in workgroup memory: one a subgroup, or one an invocation."""
        return -(-choice.workgroup // _SMALLEST_SUBGROUP) if self.subgroups else choice.workgroup

    def _stage_size(self, choice: Choice) -> int:
        """Elements of the staged x, in steps, so that few pipelines serve many lengths."""
        words = self.pieces // 2 if choice.fixed else self.pieces  # of four; fixed point is half as long
        return -(-self.m * self.blocks * words // 128) * 128 if choice.stage else 0

    def _shared_bytes(self, choice: Choice) -> int:
        size = self._stage_size(choice) * (16 if self.vector else 4)
        if choice.lanes > 1:
            size += len(self._values(choice)) * self._slots(choice) * 4
        size += self.m * self.blocks * 8 + 1024 if choice.fixed else 0
        return size + (self.m * choice.workgroup * 4 if choice.stage and self.norm is not None else 0)

    def _fit(self, choice: Choice) -> Choice:
        """The choice made to fit the device's limits and this case."""
        limits = target().limits
        most = min(limits["maxComputeInvocationsPerWorkgroup"], limits["maxComputeWorkgroupSizeX"])
        most = 1 << (most.bit_length() - 1)
        choice = replace(choice, workgroup=min(choice.workgroup, most), lanes=min(choice.lanes, choice.workgroup, most))
        if self._whole_words() and choice.rows % 2:
            choice = replace(choice, rows=2 * choice.rows)  # else two teams would share a word
        if choice.fixed and not self._may_be_fixed():
            choice = replace(choice, fixed=False)
        while self._shared_bytes(choice) > limits["maxComputeWorkgroupStorageSize"]:
            if choice.stage:
                choice = replace(choice, stage=False, fixed=False)
            elif choice.workgroup > choice.lanes:
                choice = replace(choice, workgroup=choice.workgroup // 2)
            elif choice.rows > 2:
                choice = replace(choice, rows=choice.rows // 2)
            else:
                choice = replace(choice, lanes=choice.lanes // 2, workgroup=choice.workgroup // 2)
        return choice

    def _may_be_fixed(self) -> bool:
        """16 bits of a block's range lose less than what x, of a 16-bit dtype, lost before; a float32 x stays exact."""
        return is_quantised(self.kind) and self.vector and self.x.dtype.packed

    def _static(self) -> tuple[Any, ...]:
        c = self.choice
        return (
            (c, self.streams, self.m, self.kind, self.vector, self.pieces, self._exact(), self._stage_size(c)),
            (self.scaled, self.minimum, self.norm_kind, self.x_mode, self.gain_mode, self.pack, self.subgroups),
            (self.program, tuple(isinstance(e, Tensor) for e in self.extras)),
        )

    def _exact(self) -> bool:
        return self.blocks % (self.choice.lanes * self.choice.unroll) == 0

    # ------------------------------------------------------------------------------------------ recording

    def record(self, graph: Graph) -> None:
        """Adds the dispatch to the graph."""
        rows = self.choice.rows * (self.choice.workgroup // self.choice.lanes)
        graph.launch("matvec", self._args(), self._words, self._source, grid(self.n, rows), self._static())

    def _args(self) -> list[tuple[str, Tensor, str]]:
        args = [("x", self.x, "v" if self.x_mode else "r")]
        for s, weight in enumerate(self.weights):
            for name, t in tensors_of(weight):
                args.append((f"{name}{s}", t, "v" if name == "w" and self.vector else "r"))
        if self.norm is not None and self.norm.gain is not None:
            args.append(("gain", self.norm.gain, "v" if self.gain_mode else "r"))
        args += [(f"e{i}", e, "r") for i, e in enumerate(self.extras) if isinstance(e, Tensor)]
        return [*args, ("o", self.out, "p" if self.pack == 2 else "w")]

    def _words(self, w: Words) -> None:
        step = self.choice.lanes * self.choice.unroll
        for name, value in (("N", self.n), ("K", self.k), ("blocks", self.blocks), ("steps", -(-self.blocks // step))):
            w.u32(name, value)
        w.u32("xm", self.x.strides[0])
        for s, weight in enumerate(self.weights):
            for name, t in tensors_of(weight):
                words = 16 // t.dtype.itemsize if name == "w" and self.vector else 1
                w.u32(f"{name}{s}", t.strides[0] // words)
        w.u32("per", max(1, self.group // (4 * self.pieces)) if self.vector else self.group)
        w.u32("om", self.out.strides[0])
        w.u32("on", self.out.strides[1])
        if self.norm is not None:
            w.number("eps", self.norm.eps, "f")
        for i, e in enumerate(self.extras):
            if isinstance(e, Tensor):
                w.u32(f"e{i}m", e.strides[0])
                w.u32(f"e{i}n", e.strides[1])
            else:
                w.number(f"e{i}", e, self.program.inputs[self.streams + i])

    def _finish(self, w: Words) -> str:
        """Body of the function from a product of each stream to the value that is stored."""
        inputs = [cast(f"y{s}", "f", self.program.inputs[s]) for s in range(self.streams)]
        for i, e in enumerate(self.extras):
            cls = self.program.inputs[self.streams + i]
            inputs.append(cast(f"e{i}", e.dtype.cls, cls) if isinstance(e, Tensor) else w.expr(f"e{i}", cls))
        lines, result = self.program.emit(inputs, prefix="t")
        return f"{lines}return {cast(result, self.program.cls, 'f')};\n"

    def _source(self, w: Words) -> str:
        c = self.choice
        values = self._values(c)
        offsets = {name: wgsl.word(i) if t.dtype is F16 else "" for i, (name, t, _) in enumerate(self._args())}
        return render(
            "matvec",
            w=w,
            rows=c.rows,
            lanes=c.lanes,
            workgroup=c.workgroup,
            unroll=c.unroll,
            streams=self.streams,
            x_rows=self.m,
            kind=self.kind,
            vector=self.vector,
            pieces=self.pieces,
            exact=self._exact(),
            stage=self._stage_size(c),
            fixed=c.fixed,
            ranges=-(-self.m * self.blocks // 128) * 128,
            scaled=self.scaled,
            minimum=self.minimum,
            norm=self.norm_kind,
            x_mode=self.x_mode,
            gain_mode=self.gain_mode,
            pack=self.pack,
            subgroups=self.subgroups,
            slots=self._slots(c),
            part_size=max(1, len(values) * self._slots(c)),
            values=values,
            offsets=offsets,
            extras=[(f"e{i}", wgsl.TYPE[e.dtype.cls]) for i, e in enumerate(self.extras) if isinstance(e, Tensor)],
            finish=self._finish(w),
            bits=[wgsl.bits_of(self.out.dtype, f"z{e}") for e in range(2)],
        )
