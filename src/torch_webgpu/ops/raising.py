"""An op that hands a result on, and reports an error where a condition says that it is none."""

from __future__ import annotations

import torch

from ..kernels.pointwise import LINEAR, MAIN, WORKGROUP, copy_into
from ..recipe import Graph, Tensor, Words, grid, register_error
from ..registry import lower
from ..wgsl import BOOL

_library = torch.library.Library("webgpu", "FRAGMENT")
_library.define("raise_where(Tensor result, Tensor bad, str message) -> Tensor")


def _check(bad: torch.Tensor) -> None:
    if bad.dtype != torch.bool:
        raise RuntimeError(f"raise_where: the condition must be bool, got {bad.dtype}")


def _reference(result: torch.Tensor, bad: torch.Tensor, message: str) -> torch.Tensor:
    _check(bad)
    if bad.any():
        raise RuntimeError(message)
    return result.clone()


def _fake(result: torch.Tensor, bad: torch.Tensor, message: str) -> torch.Tensor:
    _check(bad)
    return result.new_empty(result.shape)


_library.impl("raise_where", _reference, "CPU")
torch.library.register_fake("webgpu::raise_where", _fake, lib=_library)


@lower("webgpu::raise_where")
def _raise_where(graph: Graph, result: Tensor, bad: Tensor, message: str) -> Tensor:
    """A copy of ``result``; RuntimeError(message) at the next wait if an element of ``bad`` (bool, any shape) is true."""
    if bad.dtype is not BOOL:
        raise RuntimeError(f"{graph.op}: the condition must be bool, got {bad.dtype.name}")
    out = graph.new(result.sizes, result.dtype)
    copy_into(graph, result, out)
    if bad.numel == 0:
        return out
    flags = bad
    if not bad.contiguous:
        flags = graph.new(bad.sizes, BOOL)
        copy_into(graph, bad, flags)
    text = message.replace("{", "(").replace("}", ")")  # braces would be filled in

    def words(w: Words) -> None:
        w.u32("n", flags.numel)
        w.u32("error", register_error("RuntimeError", text))

    def source(w: Words) -> str:
        return (
            MAIN.format(wg=WORKGROUP)
            + f"let i = {LINEAR.format(wg=WORKGROUP)};\n"
            + f"if (i < {w.n}) {{ if (ld_b(i)) {{ fail_e({w.error}, vec2<u32>(i, 0u), {w.n}); }} }}\n}}"
        )

    graph.launch(
        "raise_where", [("b", flags, "r"), ("e", graph.error_tensor(), "a")], words, source, grid(flags.numel, WORKGROUP)
    )
    return out
