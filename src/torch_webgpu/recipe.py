"""Building a recipe: the launches of one op (or of many), over tensors known by their metadata only.

A lowering gets a ``Graph`` and ``Tensor`` values, makes new tensors, launches kernels, and returns its results. What it
did is handed to the native core as plain tuples and replayed there without Python.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from . import _C, runtime, wgsl
from .wgsl import DType

REF_OUTPUT, REF_TEMP, REF_ERROR = 1 << 20, 2 << 20, 3 << 20
PATCH_F32, PATCH_I32, PATCH_I64, PATCH_RANDOM = range(4)
_PATCH_OF_CLASS = {"f": PATCH_F32, "i": PATCH_I32, "l": PATCH_I64, "b": PATCH_I32}
MAX_GROUPS = 65535


def contiguous_strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    out, step = [], 1
    for size in reversed(sizes):
        out.append(step)
        step *= max(size, 1)
    return tuple(reversed(out))


def product(sizes: Sequence[int]) -> int:
    """Number of elements."""
    n = 1
    for size in sizes:
        n *= size
    return n


class Tensor:
    """A strided view of a buffer that exists when the recipe is replayed.

    Attributes:
        ref: what the native core resolves: an argument, an output or a temporary.
        buffer: equal for tensors that share storage.
        delta: elements from the runtime storage offset of ``ref``.
        offset: storage offset in elements at preparation time; only its residue modulo 16 bytes, and differences within
            one buffer, are part of the signature.
    """

    __slots__ = ("_contiguous", "_extent", "buffer", "delta", "dtype", "offset", "ref", "sizes", "strides", "wrapped")

    def __init__(
        self,
        ref: int,
        buffer: Any,
        dtype: DType,
        sizes: tuple[int, ...],
        strides: tuple[int, ...],
        delta: int = 0,
        offset: int = 0,
        wrapped: bool = False,
    ) -> None:
        self.ref, self.buffer, self.dtype = ref, buffer, dtype
        self.sizes, self.strides, self.delta, self.offset, self.wrapped = sizes, strides, delta, offset, wrapped
        self._extent = self._contiguous = -1  # not known yet

    @property
    def numel(self) -> int:
        return product(self.sizes)

    @property
    def ndim(self) -> int:
        return len(self.sizes)

    @property
    def extent(self) -> int:
        """Elements from the first to the last one, inclusive."""
        if self._extent < 0:
            last = 0
            for n, s in zip(self.sizes, self.strides, strict=True):
                if n == 0:
                    last = -1
                    break
                last += (n - 1) * s
            self._extent = last + 1
        return self._extent

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        if self._contiguous < 0:
            self._contiguous = self._find_contiguous()
        return self._contiguous == 1

    def _find_contiguous(self) -> int:
        if 0 in self.sizes:
            return 1
        step = 1
        for n, s in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            if n != 1:
                if s != step:
                    return 0
                step *= n
        return 1

    def aligned(self, size: int) -> bool:
        """Whether the first element lies at a multiple of ``size`` (≤ 16) bytes."""
        return (self.offset * self.dtype.itemsize) % size == 0

    def view(self, sizes: Sequence[int], strides: Sequence[int], delta: int = 0) -> Tensor:
        """Another view of the same storage, ``delta`` elements further on."""
        return Tensor(
            self.ref, self.buffer, self.dtype, tuple(sizes), tuple(strides), self.delta + delta, self.offset + delta
        )

    def expand(self, sizes: Sequence[int]) -> Tensor:
        """Broadcast to ``sizes``; raises RuntimeError where it does not fit."""
        if self.sizes == sizes:
            return self
        lead = len(sizes) - self.ndim
        strides = [0] * lead
        if lead < 0:
            raise RuntimeError(f"a tensor of shape {list(self.sizes)} cannot be expanded to {list(sizes)}")
        for have, want, stride in zip(self.sizes, sizes[lead:], self.strides, strict=True):
            if have != want and have != 1:
                raise RuntimeError(f"a tensor of shape {list(self.sizes)} cannot be expanded to {list(sizes)}")
            strides.append(0 if have == 1 else stride)
        return self.view(sizes, strides)

    def transpose(self, a: int, b: int) -> Tensor:
        """Two dimensions swapped."""
        sizes, strides = list(self.sizes), list(self.strides)
        sizes[a], sizes[b] = sizes[b], sizes[a]
        strides[a], strides[b] = strides[b], strides[a]
        return self.view(sizes, strides)

    def permute(self, order: Sequence[int]) -> Tensor:
        """Dimensions in another order."""
        return self.view([self.sizes[i] for i in order], [self.strides[i] for i in order])

    def narrow(self, dim: int, start: int, length: int) -> Tensor:
        """A slice along one dimension."""
        sizes = list(self.sizes)
        sizes[dim] = length
        return self.view(sizes, self.strides, start * self.strides[dim])

    def reshape(self, sizes: Sequence[int]) -> Tensor:
        """A view of a contiguous tensor under another shape."""
        assert self.contiguous and product(sizes) == self.numel, (self.sizes, sizes)
        return self.view(sizes, contiguous_strides(sizes))

    def __repr__(self) -> str:
        return f"{self.dtype.name}{list(self.sizes)}"


class Scalar:
    """A number that may change between replays: a float argument or a 0-dim CPU tensor.

    Reading ``value`` makes the recipe valid for this value only.
    """

    __slots__ = ("_value", "dtype", "graph", "index", "is_tensor", "wrapped")

    def __init__(self, graph: Graph, index: int, is_tensor: bool, value: Any, dtype: DType, wrapped: bool) -> None:
        self.graph, self.index, self.is_tensor = graph, index, is_tensor
        self._value, self.dtype, self.wrapped = value, dtype, wrapped

    @property
    def value(self) -> Any:
        self.graph.specialised = True
        return self._value

    @property
    def constant(self) -> Any:
        """The number of a scalar that is the same at every replay (``index`` below zero)."""
        return self._value

    def __repr__(self) -> str:
        return self.dtype.name


class Words:
    """Uniform words of one launch, by name."""

    __slots__ = ("index", "patches", "words")

    def __init__(self, operands: int) -> None:
        self.words: list[int] = [0] * operands
        self.index: dict[str, int] = {}
        self.patches: list[tuple[int, int, int, int, int]] = []

    def u32(self, name: str, value: int) -> None:
        self.index[name] = len(self.words)
        self.words.append(value)

    def f32(self, name: str, value: float) -> None:
        self.index[name] = len(self.words)
        try:
            bits = struct.unpack("<I", struct.pack("<f", value))[0]
        except OverflowError:
            bits = 0x7F800000 if value > 0 else 0xFF800000
        self.words.append(bits)

    def number(self, name: str, value: Any, cls: str) -> None:
        """A Python number or a Scalar, as a value of the class."""
        if isinstance(value, Scalar) and value.index < 0:
            value = value.constant
        if isinstance(value, Scalar):
            at = self.index[name] = len(self.words)
            if cls != "f" and value.dtype.is_float:  # rare: a float meeting integers; the value decides
                self.number(name, _exact_int(value.value, cls), cls)
                return
            self.words.extend([0] * (2 if cls == "l" else 1))
            self.patches.append((at, _PATCH_OF_CLASS[cls], int(value.is_tensor), value.index, 0))
        elif cls == "f":
            self.f32(name, float(value))
        elif cls == "l":
            self.u32(name, int(value) & 0xFFFFFFFF)
            self.words.append((int(value) >> 32) & 0xFFFFFFFF)
        else:
            self.u32(name, int(bool(value)) if cls == "b" else int(value))

    def random(self, name: str, generator: int, count: int) -> None:
        """Four words: seed and counter offset; ``count`` counters are taken from the generator at each replay."""
        at = self.index[name] = len(self.words)
        self.words.extend([0] * 4)
        self.patches.append((at, PATCH_RANDOM, 0, generator, count))

    def expr(self, name: str, cls: str = "u") -> str:
        """WGSL expression of a word in a class (``u`` for u32)."""
        i = self.index[name]
        if cls == "l":
            return f"vec2<u32>({wgsl.word(i)}, {wgsl.word(i + 1)})"
        w = wgsl.word(i)
        return {"u": w, "f": f"bitcast<f32>({w})", "i": f"bitcast<i32>({w})", "b": f"({w} != 0u)"}[cls]

    def __getattr__(self, name: str) -> str:  # templates write {{ w.rows }}
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self.expr(name)
        except KeyError:
            raise AttributeError(name) from None


def _exact_int(value: float, cls: str) -> int:
    if value != value or abs(value) == float("inf"):
        raise RuntimeError(f"value cannot be converted to an integer without overflow: {value}")
    return int(value)


_pipelines: dict[Any, int] = {}


def clear_pipelines() -> None:
    """Forgets every compiled pipeline (tests that change the environment of compilation)."""
    _pipelines.clear()


class Graph:
    """The recipe in the making.

    A graph that compiles later (``deferred``) takes elementwise work as programs through ``pointwise``.
    """

    deferred = False

    def __init__(self, op: str) -> None:
        self.op = op
        self.created: list[Tensor] = []
        self.steps: list[tuple[int, list[Any], list[int], list[Any], tuple[int, int, int]]] = []
        self.may_fail = False
        self.specialised = False
        self.target: Tensor | None = None  # where an in-place or out= call wants its (first) result

    # ------------------------------------------------------------------------------------------ tensors

    def new(self, sizes: Sequence[int], dtype: DType, strides: Sequence[int] | None = None) -> Tensor:
        """A fresh tensor: an output if it is returned, else a temporary."""
        shape = tuple(sizes)
        t = Tensor(
            -1 - len(self.created),
            ("new", len(self.created)),
            dtype,
            shape,
            tuple(strides or contiguous_strides(shape)),
        )
        self.created.append(t)
        return t

    # ------------------------------------------------------------------------------------------ launches

    def launch(
        self,
        name: str,
        args: Sequence[tuple[str, Tensor, str]],
        words: Callable[[Words], None],
        source: Callable[[Words], str],
        groups: tuple[int, int, int],
        static: Any = (),
    ) -> None:
        """Records one dispatch.

        Args:
            name: the kernel; with ``static``, dtypes, modes and aliasing it identifies the pipeline.
            args: (name in the shader, tensor, mode); modes as in ``wgsl.Operand``, ``a`` for atomics on raw words.
            words: fills the uniform words; which words, in which order, may depend on ``static`` only.
            source: WGSL with ``fn main``; called only when the pipeline is new.
            groups: workgroups; each at most 65 535 (see ``grid``).
        """
        slots: dict[Any, int] = {}
        operands, signature = [], []
        for _, t, mode in args:
            slot = slots.setdefault(t.buffer, len(slots))
            operands.append((slot, t.ref, t.delta, t.extent, t.dtype.itemsize))
            signature.append((slot, t.dtype.code, mode))
        w = Words(len(operands))
        words(w)
        key = (name, static, tuple(signature))
        pipeline = _pipelines.get(key)
        if pipeline is None:
            pipeline = _pipelines[key] = self._compile(name, args, slots, w, source)
        self.steps.append((pipeline, operands, w.words, w.patches, groups))

    def pointwise(self, program: Any, operands: Sequence[Any], out: Tensor, name: str) -> None:
        """Elementwise work of a deferred graph; operands are broadcast to ``out``."""
        raise NotImplementedError

    def _compile(
        self,
        name: str,
        args: Sequence[tuple[str, Tensor, str]],
        slots: dict[Any, int],
        w: Words,
        source: Callable[[Words], str],
    ) -> int:
        operands = [wgsl.Operand(arg, t.dtype, slots[t.buffer], mode) for arg, t, mode in args]
        uniform_slots = -(-len(w.words) // 64)
        code = wgsl.assemble(operands, len(slots), uniform_slots, source(w))
        accesses = wgsl.written_slots(operands, len(slots))
        return runtime.create_pipeline(code, accesses, uniform_slots, f"{self.op} ({name})")

    def error_tensor(self) -> Tensor:
        """The buffer in which a kernel reports an error (word 0: id, 1–2: value, 3: size)."""
        self.may_fail = True
        return Tensor(REF_ERROR, "error", wgsl.I32, (4,), (1,))

    # ------------------------------------------------------------------------------------------ result

    def finish(self, results: Sequence[Tensor]) -> tuple[Any, ...]:
        """The plain tuples the native core reads (bridge.cpp)."""
        place: dict[int, int] = {}
        outputs: list[tuple[int, int, tuple[int, ...], tuple[int, ...]]] = []
        for t in results:
            if t.ref < 0:
                place[t.ref] = REF_OUTPUT + len(outputs)
                outputs.append((-1, t.dtype.code, t.sizes, t.strides))
            else:
                outputs.append((t.ref, t.dtype.code, t.sizes, t.strides))
        temps: list[int] = []
        for t in self.created:
            if t.ref < 0 and t.ref not in place:
                place[t.ref] = REF_TEMP + len(temps)
                temps.append(max(t.extent * t.dtype.itemsize, 4))
        steps = [
            (p, [(s, place.get(r, r), d, e, i) for s, r, d, e, i in ops], words, patches, groups)
            for p, ops, words, patches, groups in self.steps
        ]
        return outputs, temps, steps, self.may_fail, self.specialised


def grid(invocations: int, workgroup: int) -> tuple[int, int, int]:
    """Workgroups for a number of invocations, folded into two dimensions under the limit of each."""
    groups = max(1, -(-invocations // workgroup))
    if groups <= MAX_GROUPS:
        return groups, 1, 1
    rows = -(-groups // MAX_GROUPS)
    return -(-groups // rows), rows, 1


def register_error(kind: str, message: str) -> int:
    """Id of a message that kernels report; ``{value}`` and ``{size}`` in it are filled in by the kernel."""
    return int(_C.register_error(kind, message))
