"""Matrix products: few rows (GEMV), tiles (GEMM), batches, and the fused ``beta * c + alpha * a @ b`` forms."""

from __future__ import annotations

from typing import Any

from .. import wgsl
from ..kernels import render
from ..kernels.gemm import gemm
from ..kernels.pointwise import compute, contiguous, dtype_of, emit, private_target, result_dtype
from ..recipe import MAX_GROUPS, Graph, Scalar, Tensor, Words, grid
from ..registry import lower
from ..runtime import target

GEMV_ROWS = 4  # rows up to which b is read along k by whole workgroups
GEMV_LANES, GEMV_COLUMNS = 32, 4
PLAIN_WORKGROUP = 64


def _fits(limit: int, *tensors: Tensor | None) -> bool:
    return all(t is None or t.extent * t.dtype.itemsize + 256 <= limit for t in tensors)


def product3(graph: Graph, a: Tensor, b: Tensor, out: Tensor, c: Tensor | None, alpha: Any, beta: Any) -> None:
    """``out[z, m, n] = alpha * a[z, m, k] @ b[z, k, n] + beta * c``; all of rank 3, batches may be broadcast (stride 0).

    Operands beyond the largest binding are cut along the batch, then n, then m.
    """
    limit = target().limits["maxStorageBufferBindingSize"]
    z, m, n = out.sizes
    if not _fits(limit, a, b, out, c) or z > MAX_GROUPS:
        dim = 0 if z > 1 else 2 if (not _fits(limit, b) or n > 1) and (n >= m or _fits(limit, a)) else 1
        if out.sizes[dim] == 1:
            raise RuntimeError(
                f"{graph.op}: one row of {a} @ {b} exceeds the largest binding of {limit} bytes; split the matrix"
            )
        half = out.sizes[dim] // 2
        for start, length in ((0, half), (half, out.sizes[dim] - half)):
            product3(
                graph,
                a.narrow(dim, start, length) if dim != 2 else a,
                b.narrow(dim, start, length) if dim != 1 else b,
                out.narrow(dim, start, length),
                c.narrow(dim, start, length) if c is not None else None,
                alpha,
                beta,
            )
        return
    if _kernel(a, b, out) == "gemm":
        return gemm(graph, a, b, out, c=c, alpha=alpha, beta=beta)
    _launch(graph, a, b, out, c, alpha, beta)


def _kernel(a: Tensor, b: Tensor, out: Tensor) -> str:
    _, m, n = out.sizes
    if out.dtype.cls != "f":
        return "plain"
    if m <= GEMV_ROWS and (b.strides[1] == 1 or b.sizes[1] == 1):
        return "gemv"
    if m <= GEMV_ROWS and m * n >= 256:
        return "plain"
    return "gemm"


def _launch(graph: Graph, a: Tensor, b: Tensor, out: Tensor, c: Tensor | None, alpha: Any, beta: Any) -> None:
    z, m, n = out.sizes
    kernel = _kernel(a, b, out)
    cls = out.dtype.cls

    def words(w: Words) -> None:
        for name, value in (("M", m), ("N", n), ("K", a.sizes[2]), ("count", z * m * n)):
            w.u32(name, value)
        for t, name, dims in ((a, "a", "zmk"), (b, "b", "zkn"), (out, "o", "zmn"), (c, "c", "zmn")):
            if t is not None:
                for d, s in zip(dims, t.strides, strict=True):
                    w.u32(name + d, s)
        w.number("alpha", alpha, "f")
        w.number("beta", beta, "f")

    def source(w: Words) -> str:
        bias = c is not None
        if kernel == "gemv":
            return render("gemv", w=w, rows=m, columns=GEMV_COLUMNS, lanes=GEMV_LANES, bias=bias)
        loads = {
            "load_a": wgsl.cast(f"ld_a(at_a + k * {w.ak})", a.dtype.cls, cls),
            "load_b": wgsl.cast(f"ld_b(at_b + k * {w.bk})", b.dtype.cls, cls),
        }
        return render("matmul_plain", w=w, workgroup=PLAIN_WORKGROUP, cls=cls, zero=wgsl.ZERO[cls], bias=bias, **loads)

    if kernel == "gemv":
        x, y, _ = grid(n, GEMV_COLUMNS)
        groups = (x, y, z)
    else:
        groups = grid(z * m * n, PLAIN_WORKGROUP)
    static = (m if kernel == "gemv" else 0, cls, c is not None)
    args = [("a", a, "r"), ("b", b, "r"), ("o", out, "w")] + ([("c", c, "r")] if c is not None else [])
    graph.launch(kernel, args, words, source, groups, static)


def _is(value: Any, number: float) -> bool:
    return (value.value if isinstance(value, Scalar) else value) == number


def _product(graph: Graph, a: Tensor, b: Tensor, c: Tensor | None = None, beta: Any = 0, alpha: Any = 1) -> Tensor:
    """Rank-3 product with optional addend; checks shapes and dtypes."""
    if a.dtype is not b.dtype:
        raise RuntimeError(
            f"{graph.op}: expected m1 and m2 to have the same dtype, but got: {a.dtype.name} != {b.dtype.name}"
        )
    if a.sizes[2] != b.sizes[1] or a.sizes[0] != b.sizes[0]:
        raise RuntimeError(
            f"{graph.op}: mat1 and mat2 shapes cannot be multiplied ({a.sizes[1]}x{a.sizes[2]} and "
            f"{b.sizes[1]}x{b.sizes[2]}, "
            f"batches {a.sizes[0]} and {b.sizes[0]})"
        )
    target = private_target(graph)
    sizes = (a.sizes[0], a.sizes[1], b.sizes[2])
    out = graph.new(sizes, a.dtype)
    if c is not None and _is(beta, 0):
        c = None
    if c is not None:
        c = c.expand(sizes)
    if out.numel and a.sizes[2] == 0:
        if c is None:
            emit(graph, "{0}", [0], [a.dtype.cls], a.dtype.cls, out, "fill")
        else:
            emit(graph, "({0} * {1})", [c, beta], ["f", "f"], "f", out, "scale")
    elif out.numel and a.sizes[2] == 1 and c is None:  # as a pointwise operation, which the compiler fuses
        cls = a.dtype.cls
        form = "mul64({0}, {1})" if cls == "l" else "({0} * {1})"
        emit(graph, form, [a.expand(sizes), b.expand(sizes)], [cls, cls], cls, out, "outer")
    elif out.numel and (a.dtype.is_float or c is None):
        product3(graph, a, b, out, c, alpha, beta)
    elif out.numel:
        product3(graph, a, b, out, None, 1, 0)
        combined = graph.new(sizes, a.dtype)
        cls = a.dtype.cls
        form = "add64(mul64({1}, {3}), mul64({0}, {2}))" if cls == "l" else "({1} * {3} + {0} * {2})"
        assert c is not None
        emit(graph, form, [out, c, alpha, beta], [cls] * 4, cls, combined, "addmm_int")
        out = combined
    graph.target = target
    return out


def _lift(t: Tensor) -> Tensor:
    return t.view((1, *t.sizes), (0, *t.strides))


def _need(graph: Graph, *expected: tuple[Tensor, int]) -> None:
    for t, ndim in expected:
        if t.ndim != ndim:
            raise RuntimeError(f"{graph.op}: expected a tensor with {ndim} dimensions, got shape {list(t.sizes)}")


def _drop(t: Tensor, *dims: int) -> Tensor:
    """Size-1 dimensions removed."""
    keep = [i for i in range(t.ndim) if i not in dims]
    return t.view([t.sizes[i] for i in keep], [t.strides[i] for i in keep])


@lower("mm")
def _mm(graph: Graph, a: Tensor, b: Tensor) -> Tensor:
    _need(graph, (a, 2), (b, 2))
    return _drop(_product(graph, _lift(a), _lift(b)), 0)


@lower("bmm")
def _bmm(graph: Graph, a: Tensor, b: Tensor) -> Tensor:
    _need(graph, (a, 3), (b, 3))
    return _product(graph, a, b)


@lower("addmm")
def _addmm(graph: Graph, c: Tensor, a: Tensor, b: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    _need(graph, (a, 2), (b, 2))
    return _drop(_product(graph, _lift(a), _lift(b), c, beta, alpha), 0)


@lower("_addmm_activation")
def _addmm_activation(
    graph: Graph, c: Tensor, a: Tensor, b: Tensor, beta: Any = 1, alpha: Any = 1, use_gelu: bool = False
) -> Tensor:
    out = _drop(_product(graph, _lift(a), _lift(b), c, beta, alpha), 0)
    form = "gelu_tanh_({0})" if use_gelu else "select(max({0}, 0.0), {0}, isnan_({0}))"
    return compute(graph, form, [out], ["f"], "f", out.dtype, "activation")


@lower("baddbmm")
def _baddbmm(graph: Graph, c: Tensor, a: Tensor, b: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    _need(graph, (a, 3), (b, 3))
    return _product(graph, a, b, c, beta, alpha)


@lower("addbmm")
def _addbmm(graph: Graph, c: Tensor, a: Tensor, b: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """The sum of a batch's products is one product: of (n, batch * m) and (batch * m, p)."""
    _need(graph, (a, 3), (b, 3))
    if a.sizes[0] != b.sizes[0] or a.sizes[2] != b.sizes[1]:
        raise RuntimeError(f"{graph.op}: batch1 {list(a.sizes)} and batch2 {list(b.sizes)} cannot be multiplied")
    target = private_target(graph)
    batch, n, m = a.sizes
    wide = contiguous(graph, a.permute((1, 0, 2))).reshape((1, n, batch * m))
    tall = contiguous(graph, b).reshape((1, batch * m, b.sizes[2]))
    graph.target = target
    return _drop(_product(graph, wide, tall, c, beta, alpha), 0)


@lower("addr")
def _addr(graph: Graph, c: Tensor, x: Tensor, y: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    _need(graph, (x, 1), (y, 1))
    sizes = (x.sizes[0], y.sizes[0])
    d = result_dtype(c, x, y)
    if not d.is_float and any(dtype_of(v).is_float for v in (alpha, beta)):
        raise RuntimeError(f"{graph.op}: for integral input tensors, alpha and beta must not be floating point numbers.")
    form = {"l": "mul64({1}, mul64({0}, {2}))", "b": "({1} && {0} && {2})"}.get(d.cls, "({1} * {0} * {2})")
    operands = [x.view((x.sizes[0], 1), (x.strides[0], 0)), alpha, y]
    if not _is(beta, 0):
        added = {"l": "add64(mul64({4}, {3}), @)", "b": "(({4} && {3}) || @)"}.get(d.cls, "({4} * {3} + @)")
        form, operands = added.replace("@", form), [*operands, c.expand(sizes), beta]
    return compute(graph, form, operands, [d.cls] * len(operands), d.cls, d, "addr", sizes)


@lower("mv")
def _mv(graph: Graph, a: Tensor, x: Tensor) -> Tensor:
    _need(graph, (a, 2), (x, 1))
    return _addmv(graph, None, a, x, 0, 1)


@lower("addmv")
def _addmv(graph: Graph, c: Tensor | None, a: Tensor, x: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    row = _lift(_lift(x))
    if c is not None:
        c = c.expand((a.sizes[0],))
    return _drop(_product(graph, row, _lift(a.transpose(0, 1)), c, beta, alpha), 0, 1)


@lower("dot")
def _dot(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    _need(graph, (x, 1), (y, 1))
    if x.sizes != y.sizes:
        raise RuntimeError(
            f"inconsistent tensor size, expected tensor {list(x.sizes)} and src {list(y.sizes)} to have the same size"
        )
    column = y.view((1, y.sizes[0], 1), (0, y.strides[0], 1))
    return _drop(_product(graph, _lift(_lift(x)), column), 0, 1, 2)


@lower("vdot")
def _vdot(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    return _dot(graph, x, y)
