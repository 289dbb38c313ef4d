"""Building a recipe: the launches of one op (or of many), over tensors known by their metadata only.

A lowering gets a ``Graph`` and ``Tensor`` values, makes new tensors, launches kernels, and returns its results. What it
did is handed to the native core as plain tuples and replayed there without Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from . import _C, runtime, wgsl
from .errors import LimitError
from .wgsl import DType

REF_OUTPUT, REF_TEMP, REF_ERROR = 1 << 20, 2 << 20, 3 << 20
PATCH_F32, PATCH_I32, PATCH_I64, PATCH_RANDOM = range(4)
_PATCH_OF_CLASS = {"f": PATCH_F32, "i": PATCH_I32, "l": PATCH_I64, "b": PATCH_I32}
MAX_GROUPS = 65535


contiguous_strides = _C.contiguous_strides  # row-major, in elements


def product(sizes: Sequence[int]) -> int:
    """Number of elements."""
    n = 1
    for size in sizes:
        n *= size
    return n


def spans(size: int, step: int) -> Iterator[tuple[int, int]]:
    """(start, length) of pieces of ``step``, the last one possibly shorter; unlike ``range`` it takes symbols."""
    start = 0
    while start < size:
        yield start, min(step, size - start)
        start += step


def power_of_two(least: int) -> int:
    """The smallest power of two that is not less."""
    n = 1
    while n < least:
        n *= 2
    return n


class Tensor(_C.View):
    """A strided view of a buffer that exists when the recipe is replayed.

    Its shape arithmetic is native (csrc/view.cpp): ``numel``, ``ndim``, ``extent`` (elements from the first to the last
    one, inclusive), ``contiguous`` (row-major order without gaps), ``aligned(size)`` (whether the first element lies at a
    multiple of ``size`` ≤ 16 bytes), ``view(sizes, strides, delta)`` (another view of the storage, ``delta`` elements
    further on), ``expand(sizes)`` (raises RuntimeError where it does not fit), ``narrow(dim, start, length)``,
    ``transpose(a, b)``.

    Attributes:
        ref: what the native core resolves: an argument, an output or a temporary.
        buffer: equal for tensors that share storage.
        delta: elements from the runtime storage offset of ``ref``.
        offset: storage offset in elements at preparation time; only its residue modulo 16 bytes, and differences within
            one buffer, are part of the signature.
    """

    __slots__ = ()

    @property
    def on_cpu(self) -> bool:
        """Whether it is a CPU tensor with dimensions, which only a ``mixed`` lowering gets to see."""
        return isinstance(self.buffer, tuple) and self.buffer[0] == "cpu"

    def permute(self, order: Sequence[int]) -> Tensor:
        """Dimensions in another order."""
        return self.view([self.sizes[i] for i in order], [self.strides[i] for i in order])

    def reshape(self, sizes: Sequence[int]) -> Tensor:
        """A view of a contiguous tensor under another shape."""
        assert self.contiguous and product(sizes) == self.numel, (self.sizes, sizes)
        return self.view(sizes, contiguous_strides(sizes))

    def __repr__(self) -> str:
        return f"{self.dtype.name}{list(self.sizes)}"


_C.set_tensor_type(Tensor, wgsl.DTYPES)


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
        if self.index >= 0:
            self.graph.specialised = True
        return self._value

    @property
    def constant(self) -> Any:
        """The number of a scalar that is the same at every replay (``index`` below zero)."""
        return self._value

    def __repr__(self) -> str:
        return self.dtype.name


class Words(_C.WordList):
    """Uniform words of one launch, by name: ``u32(name, integer)``, ``f32(name, number)`` and the methods below."""

    __slots__ = ()

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
            value = value if isinstance(value, int) else int(value)
            self.u32(name, value & 0xFFFFFFFF)
            self.words.append((value >> 32) & 0xFFFFFFFF)
        else:
            value = value if isinstance(value, int) else int(value)
            self.u32(name, int(bool(value)) if cls == "b" else value & 0xFFFFFFFF)

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
_errors: dict[tuple[str, str], None] = {}


def clear_pipelines() -> None:
    """Forgets every compiled pipeline (tests that change the environment of compilation)."""
    _pipelines.clear()
    runtime.clear_pipelines()


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
        ref = -1 - len(self.created)  # also its buffer; arguments' buffers count from 0
        t = Tensor(ref, ref, dtype, sizes, strides or contiguous_strides(sizes))
        self.created.append(t)
        return t

    def owns_last_word(self, t: Tensor) -> bool:
        """Whether nothing that matters follows ``t`` in the word of its last element: it ends where a fresh tensor ends."""
        if not isinstance(t.buffer, int) or t.buffer >= 0:
            return False
        base = self.created[-1 - t.buffer]
        return t.offset + t.extent >= base.offset + base.extent

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
        operands, signature, slots = _C.bind(args)
        w = Words(len(operands))
        try:
            words(w)
        except OverflowError as e:
            tensors = ", ".join(str(t) for _, t, _ in args)
            raise LimitError(
                f"{self.op} on {tensors}: kernels count with 32 bits, which {e} exceeds; split the tensor, or expand it "
                "after the operation"
            ) from e
        key = (name, static, signature)
        elsewhere = runtime.described()
        known = _pipelines if elsewhere is None else elsewhere.pipelines
        pipeline = known.get(key)
        if pipeline is None:
            pipeline = known[key] = self._compile(name, args, slots, w, source)
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
            ref = t.ref
            if ref < 0:
                place[ref] = REF_OUTPUT + len(outputs)
                ref = -1
            outputs.append((ref, t.dtype.code, t.sizes, t.strides))
        temps: list[int] = []
        if len(self.created) > len(place):
            for t in self.created:
                if t.ref not in place:
                    place[t.ref] = REF_TEMP + len(temps)
                    temps.append(max(t.extent * t.dtype.itemsize, 4))
        steps = [
            (p, [(o[0], place[o[1]], *o[2:]) if o[1] < 0 else o for o in ops], words, patches, groups)
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
    _errors[kind, message] = None
    return int(_C.register_error(kind, message))


def known_errors() -> list[tuple[str, str]]:
    """Kinds and messages of all that were registered; their ids are the same in every process."""
    return list(_errors)
