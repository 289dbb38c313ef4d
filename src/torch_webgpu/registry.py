"""The one table of lowerings, and what happens on a recipe miss.

``@lower("add.Tensor")`` registers the functional op; its in-place and ``out=`` forms follow by themselves. What has no
lowering is decomposed by PyTorch's table, else runs on the CPU (or raises, under ``TORCH_WEBGPU_FALLBACK=error``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import _C, wgsl
from .decompositions import without_lowering
from .errors import UnsupportedDTypeError
from .kernels.pointwise import check_castable, copy_into
from .pieces import Cuts, exceeds, in_pieces
from .recipe import Graph, Scalar, Tensor, contiguous_strides

Lowering = Callable[..., Any]
_PRIVATEUSE1 = 20  # c10::DeviceType::PrivateUse1


@dataclass(frozen=True)
class Entry:
    """One op overload.

    Attributes:
        results: how many tensors it returns, for ``out=`` forms the number of ``out`` arguments.
        form: ``new``, ``inplace`` or ``out``.
        mixed: whether CPU tensors with dimensions may be among the arguments.
    """

    lowering: Lowering
    form: str
    results: int
    mixed: bool


_entries: dict[str, Entry] = {}
_cuts: dict[str, Cuts] = {}
_cpu_by_choice: dict[str, str] = {}


def _add(key: str, entry: Entry) -> None:
    if key in _entries:
        raise ValueError(f"{key} has two lowerings")
    _entries[key] = entry


def lower(
    *names: str, out: str | None = None, results: int = 1, inplace: bool = True, mixed: bool = False
) -> Callable[[Lowering], Lowering]:
    """Registers a lowering for ATen overloads (``"add.Tensor"``; ``"webgpu::name"`` for the package's own).

    Args:
        out: overload name of the ``out=`` form where it does not follow from the functional one.
        results: number of returned tensors.
        inplace: whether the op's trailing-underscore form, if PyTorch has one, computes the same.
        mixed: whether CPU tensors with dimensions may be among the arguments.
    """

    def register(lowering: Lowering) -> Lowering:
        for name in names:
            if name.startswith("webgpu::"):
                _add(name, Entry(lowering, "new", results, mixed))
                continue
            base, _, overload = name.partition(".")
            operator = base.startswith("__")  # __and__, whose in-place form is __iand__
            updates = base.endswith("_") and not operator
            _add(name, Entry(lowering, "inplace" if updates else "new", results, mixed))
            if updates:
                continue
            updating = f"__i{base[2:]}" if operator else f"{base}_"
            if inplace and _C.has_schema(f"aten::{updating}", overload):
                _add(f"{updating}.{overload}".rstrip("."), Entry(lowering, "inplace", results, mixed))
            for candidate in (out,) if out else (f"{overload}_out" if overload else "out", "out"):
                if _C.has_schema(f"aten::{base}", candidate) and f"{base}.{candidate}" not in _entries:
                    _add(f"{base}.{candidate}", Entry(lowering, "out", results, mixed))
                    break
        return lowering

    return register


def cuttable(*names: str) -> Callable[[Cuts], Cuts]:
    """Registers along which dimensions ops (all overloads and forms) may be cut: (arguments, results) → ``pieces.Cut``s."""

    def register(cuts: Cuts) -> Cuts:
        for name in names:
            if name in _cuts:
                raise ValueError(f"{name} is cut in two ways")
            _cuts[name] = cuts
        return cuts

    return register


def fallback(reason: str, *names: str) -> None:
    """Declares ops that run on the CPU on purpose (still counted by ``torch_webgpu.fallbacks()``)."""
    for name in names:
        _cpu_by_choice[name] = reason


def install() -> None:
    """Puts the native core's kernel directly on every op that has a lowering."""
    for key in _entries:
        if "::" not in key:
            _C.register_op("aten", key)
    _C.set_miss_handler(miss, trace)


_AS_THEY_ARE = (Tensor, int, bool, str, type(None))


def _convert(graph: Graph, value: Any, index: int, entry: Entry) -> Any:
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, float):
        return Scalar(graph, index, False, value, wgsl.F32, True)
    if isinstance(value, _C.Meta):
        if value.device != _PRIVATEUSE1 and value.value is not None:
            kind = wgsl.DTYPES.get(value.dtype, wgsl.F32)
            return Scalar(graph, value.ref, True, value.value, kind, value.wrapped)
        if value.device != _PRIVATEUSE1 and not entry.mixed:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found webgpu and "
                f"{'cpu' if value.device == 0 else 'another'} (a tensor of shape {list(value.sizes)}) "
                f"in {graph.op}; move it with .to('webgpu')"
            )
        known = wgsl.DTYPES.get(value.dtype)
        if known is None:
            raise UnsupportedDTypeError(f"{graph.op}: webgpu has no tensors of c10 scalar type {value.dtype}")
        return Tensor(value.ref, ("cpu", value.ref), known, value.sizes, value.strides, 0, value.offset, value.wrapped)
    if isinstance(value, list):
        return [_convert(graph, v, index, entry) for v in value]
    return value


def miss(name: str, overload: str, raw: tuple[Any, ...]) -> Any:
    """Called by the native core for a signature it does not know; see ``recipe.Graph.finish`` for what it returns."""
    base = name.removeprefix("aten::")
    key = f"{base}.{overload}" if overload else base
    entry = _entries.get(key)
    if entry is None:
        return without_lowering(name, overload, key, key in _cpu_by_choice)
    graph = Graph(key)
    results = apply(
        graph, entry, [v if type(v) in _AS_THEY_ARE else _convert(graph, v, i, entry) for i, v in enumerate(raw)]
    )
    if results is NotImplemented:
        return without_lowering(name, overload, key, key in _cpu_by_choice, this_signature_only=True)
    if isinstance(results, str):
        return results
    return graph.finish(results)


def trace(name: str, overload: str, raw: tuple[Any, ...]) -> Any:
    """Like ``miss`` for a call some of whose numbers are symbols (csrc/number.h).

    Returns:
        The recipe, symbols in it; None where it would not serve other calls, or where only ``miss`` can tell what to do.
    """
    base = name.removeprefix("aten::")
    key = f"{base}.{overload}" if overload else base
    entry = _entries.get(key)
    if entry is None:
        return None
    graph = Graph(key)
    try:
        results = apply(
            graph, entry, [v if type(v) in _AS_THEY_ARE else _convert(graph, v, i, entry) for i, v in enumerate(raw)]
        )
        if results is NotImplemented or isinstance(results, str):
            return None
        return graph.finish(results)
    except Exception:  # whatever it is, the call itself raises it
        return None


def apply(graph: Graph, entry: Entry, args: list[Any]) -> Any:
    """Runs a lowering over a call's arguments, targets of ``out=`` among them.

    Returns:
        The list of results; NotImplemented where the lowering declines; the name of an op of the same schema that does it
        with help of the host.
    """
    targets: list[Tensor] = []
    if entry.form == "inplace":
        targets = [args[0]]
    elif entry.form == "out":
        targets, args = args[len(args) - entry.results :], args[: len(args) - entry.results]
    if targets:
        graph.target = targets[0]
        _check_overlap(graph, targets)
    result = entry.lowering(graph, *args)
    if result is NotImplemented or isinstance(result, str):
        return result
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    if not graph.deferred and exceeds(graph):
        results = _cut(graph, entry, args, results)
    if not targets:
        return results
    if entry.form == "out":
        _check_inputs(graph, args, targets, results)
    kept = [_is_input(t, args) or entry.form == "inplace" for t in targets]
    return [_deliver(graph, r, t, k) for r, t, k in zip(results, targets, kept, strict=True)]


def _is_input(t: Tensor, args: list[Any]) -> bool:
    """Whether an ``out=`` tensor is one of the inputs too: then it keeps its shape."""
    return any(
        isinstance(a, Tensor) and a.buffer == t.buffer and a.offset == t.offset and a.sizes == t.sizes and a.numel != 1
        for a in args
    )


def entry_of(key: str) -> Entry | None:
    """The lowering of an overload (``"add.Tensor"``, ``"mm"``), if there is one."""
    return _entries.get(key)


def _cut(graph: Graph, entry: Entry, args: list[Any], results: list[Tensor]) -> list[Tensor]:
    """The op slice by slice, along the longest dimension it can be cut along; the results as they are without one."""
    cuts = _cuts.get(graph.op.removeprefix("webgpu::").partition(".")[0].rstrip("_"))
    found = [cut for cut in cuts(args, len(results)) if cut.length(args) > 1] if cuts is not None else []
    if not found:
        return results  # the native core raises LimitError where the buffer is larger than a binding
    found.sort(key=lambda cut: -cut.length(args))
    graph.created.clear()
    graph.steps.clear()
    graph.target = None
    return in_pieces(graph, entry.lowering, args, results, found)


_APART = frozenset(("gather", "take", "cat", "kthvalue", "index_select", "sort", "topk", "mode"))


def _check_inputs(graph: Graph, args: list[Any], targets: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Refuses ``out=`` tensors that an op of ``_APART`` reads: their elements are needed after they were written."""
    if graph.op.partition(".")[0] not in _APART:
        return
    inputs = [t for a in args for t in (a if isinstance(a, list) else (a,)) if isinstance(t, Tensor)]
    for t, result in zip(targets, results, strict=True):
        extent = t.extent if t.sizes == result.sizes else result.numel  # resized, it is contiguous
        for x in inputs:
            same = t.sizes == x.sizes and t.offset == x.offset
            if t.buffer == x.buffer and (same or (t.offset < x.offset + x.extent and x.offset < t.offset + extent)):
                raise RuntimeError(
                    f"unsupported operation in {graph.op}: some elements of the input tensor and the written-to tensor "
                    "refer to a single memory location. Please clone() the tensor before performing the operation."
                )


def _check_overlap(graph: Graph, targets: Sequence[Tensor]) -> None:
    """Refuses to write a tensor whose elements share memory (an expanded one), unless all get the same value."""
    if graph.op.partition(".")[0] in ("fill_", "zero_"):
        return
    for t in targets:
        if t.numel > 1 and any(stride == 0 and size > 1 for size, stride in zip(t.sizes, t.strides, strict=True)):
            raise RuntimeError(
                f"unsupported operation in {graph.op}: more than one element of the written-to tensor refers to a single "
                "memory location. Please clone() the tensor before performing the operation."
            )


def _deliver(graph: Graph, result: Tensor, target: Tensor, kept: bool) -> Tensor:
    """Brings a result to the tensor an in-place or ``out=`` call wants it in; with ``kept``, that cannot be resized."""
    if result is target or (
        result.buffer == target.buffer and result.strides == target.strides and result.sizes == target.sizes
    ):
        return result
    if result.sizes != target.sizes:
        if kept:
            raise RuntimeError(
                f"output with shape {list(target.sizes)} doesn't match the broadcast shape "
                f"{list(result.sizes)} in {graph.op}"
            )
        target = Tensor(
            target.ref, target.buffer, target.dtype, result.sizes, contiguous_strides(result.sizes), 0, target.offset
        )
    check_castable(result.dtype, target.dtype)
    copy_into(graph, result, target)
    return target


def lowered() -> Sequence[str]:
    """Names of all op overloads with a lowering."""
    return sorted(_entries)
