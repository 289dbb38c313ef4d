"""Kernels that compute each element of a new tensor by a WGSL function of its linear index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import wgsl
from ..kernels.pointwise import LINEAR, MAIN, WORKGROUP
from ..recipe import Graph, Tensor, Words, grid


def gather(
    graph: Graph,
    name: str,
    out: Tensor,
    args: Sequence[tuple[str, Tensor]],
    words: Callable[[Words], None],
    functions: Callable[[Words], str],
    static: Any = (),
) -> Tensor:
    """Computes ``out[i] = value_(i)`` for every linear index.

    Args:
        out: a new contiguous tensor; dtypes that share words are written in whole words.
        args: (name in the shader, tensor) of the tensors read.
        words: fills the uniform words; which ones may depend on ``static`` only.
        functions: WGSL that declares ``fn value_(i: u32)``, returning the class of ``out``.
    """
    n, d = out.numel, out.dtype
    if n == 0:
        return out
    per = d.per_word

    def all_words(w: Words) -> None:
        w.u32("n", n)
        words(w)

    def source(w: Words) -> str:
        body = functions(w) + "\n" + MAIN.format(wg=WORKGROUP) + f"let k = {LINEAR.format(wg=WORKGROUP)};\n"
        if not d.packed:
            return body + f"if (k >= {w.n}) {{ return; }}\nst_o(k, value_(k));\n}}"
        bits = wgsl.bits_of(d, f"value_(k * {per}u + e)")
        return body + (
            f"if (k * {per}u >= {w.n}) {{ return; }}\nvar bits = 0u;\n"
            f"for (var e = 0u; e < {per}u; e++) {{\n"
            f"if (k * {per}u + e < {w.n}) {{ bits = bits | ({bits} << (e * {d.itemsize * 8}u)); }}\n}}\n"
            "st_o(k, bits);\n}"
        )

    operands = [("o", out, "p" if d.packed else "w"), *((name_, t, "r") for name_, t in args)]
    graph.launch(name, operands, all_words, source, grid(-(-n // per), WORKGROUP), static)
    return out


def unpack(index: str, names: Sequence[str], sizes: Sequence[str]) -> str:
    """WGSL that splits a linear index into coordinates, the last one fastest; the first has no size."""
    lines = [f"var rest = {index};"]
    for name, size in zip(reversed(names[1:]), reversed(sizes), strict=True):
        lines.append(f"let {name} = rest % {size}; rest = rest / {size};")
    return "\n".join(lines) + f"\nlet {names[0]} = rest;"


def triple(values: Sequence[int] | int, default: int, rank: int) -> tuple[int, int, int]:
    """An argument of ``rank`` spatial dimensions for three of them; one number stands for all ``rank``."""
    given = [values] if isinstance(values, int) else list(values)
    if len(given) == 1:
        given = given * rank
    out = [default] * (3 - len(given)) + given
    return out[0], out[1], out[2]


def five(t: Tensor, rank: int) -> Tensor:
    """View with a batch, a channel and three spatial dimensions of a tensor with ``rank`` spatial ones."""
    lead, spatial = list(t.sizes[: t.ndim - rank]), list(t.sizes[t.ndim - rank :])
    lead_strides, spatial_strides = list(t.strides[: t.ndim - rank]), list(t.strides[t.ndim - rank :])
    fill, missing = 3 - rank, 2 - len(lead)
    return t.view(
        [1] * missing + lead + [1] * fill + spatial,
        [0] * missing + lead_strides + [0] * fill + spatial_strides,
    )
