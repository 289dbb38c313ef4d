"""Errors that depend on values: reported by a kernel, raised at the next wait."""

from __future__ import annotations

import torch

from ..kernels.pointwise import LINEAR, MAIN, WORKGROUP, contiguous, copy_into
from ..recipe import Graph, Tensor, Words, grid, register_error
from ..registry import lower
from ..wgsl import BOOL, cast

_library = torch.library.Library("webgpu", "FRAGMENT")
_library.define("raise_where(Tensor result, Tensor bad, str message) -> Tensor")


def _check(bad: torch.Tensor) -> None:
    if bad.dtype != torch.bool and not bad.is_floating_point():
        raise RuntimeError(f"raise_where: the condition must be bool or float, got {bad.dtype}")


def _reference(result: torch.Tensor, bad: torch.Tensor, message: str) -> torch.Tensor:
    _check(bad)
    if (bad if bad.dtype == torch.bool else bad.isnan()).any():
        raise RuntimeError(message)
    return result.clone(memory_format=torch.contiguous_format)


def _fake(result: torch.Tensor, bad: torch.Tensor, message: str) -> torch.Tensor:
    _check(bad)
    return result.new_empty(result.shape)


_library.impl("raise_where", _reference, "CPU")
torch.library.register_fake("webgpu::raise_where", _fake, lib=_library)


@lower("webgpu::raise_where")
def _raise_where(graph: Graph, result: Tensor, bad: Tensor, message: str) -> Tensor:
    """A copy of ``result``; RuntimeError(message) at the next wait if an element of ``bad`` is true or, of floats, NaN."""
    if bad.dtype is not BOOL and not bad.dtype.is_float:
        raise RuntimeError(f"{graph.op}: the condition must be bool or float, got {bad.dtype.name}")
    result, bad = contiguous(graph, result), contiguous(graph, bad)
    out = graph.new(result.sizes, result.dtype)
    if bad.numel == 0:
        copy_into(graph, result, out)
        return out
    _report(graph, bad, "ld_b(i)" if bad.dtype is BOOL else "isnan_(ld_b(i))", message, (result, out) if out.numel else None)
    return out


@lower("_assert_async", "_assert_async.msg", results=0)
def _assert_async(
    graph: Graph, condition: Tensor, message: str = "Expected Tensor with single nonzero value"
) -> list[Tensor]:
    """RuntimeError(message) at the next wait if the condition, a tensor of one element, is zero."""
    if condition.numel != 1:
        raise RuntimeError(f"{graph.op}: the condition must have one element, got {list(condition.sizes)}")
    nonzero = cast("ld_b(i)", condition.dtype.cls, BOOL.cls)
    _report(graph, contiguous(graph, condition), f"!({nonzero})", message, None)
    return []


def _report(graph: Graph, flags: Tensor, wrong: str, message: str, copied: tuple[Tensor, Tensor] | None) -> None:
    """Looks at every flag ``ld_b(i)``; beside it copies one tensor to another."""
    count = copied[1].numel if copied else 0
    operands = [("x", copied[0], "r"), ("o", copied[1], "w")] if copied else []
    text = message.replace("{", "(").replace("}", ")")  # braces would be filled in

    def words(w: Words) -> None:
        w.u32("n", count)
        w.u32("flags", flags.numel)
        w.u32("error", register_error("RuntimeError", text))

    def source(w: Words) -> str:
        return (
            MAIN.format(wg=WORKGROUP)
            + f"let i = {LINEAR.format(wg=WORKGROUP)};\n"
            + (f"if (i < {w.n}) {{ st_o(i, ld_x(i)); }}\n" if copied else "")
            + f"if (i < {w.flags}) {{ if ({wrong}) {{ fail_e({w.error}, vec2<u32>(i, 0u), {w.flags}); }} }}\n}}"
        )

    args = [("b", flags, "r"), ("e", graph.error_tensor(), "a"), *operands]
    graph.launch("raise_where", args, words, source, grid(max(count, flags.numel), WORKGROUP))
