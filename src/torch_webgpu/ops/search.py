"""Order statistics and binary search, over the sort."""

from __future__ import annotations

from .. import wgsl
from ..kernels.pointwise import LINEAR, MAIN, WORKGROUP, contiguous, emit, result_dtype
from ..recipe import Graph, Scalar, Tensor, Words, grid, product
from ..registry import fallback, lower
from ..wgsl import I32, I64, cast
from .creation import fill
from .sort import lined, normal_dim, sort_into


def _ranked(graph: Graph, x: Tensor, k: int, dim: int, keepdim: bool, nan: bool) -> tuple[Tensor, Tensor]:
    """The k-th smallest of each row (from 1) and where it is; with ``nan``, a row with NaN gives NaN."""
    line = lined(x)
    n = line.sizes[dim]
    kept = n if nan else k
    shape = [kept if d == dim else size for d, size in enumerate(line.sizes)]
    values, indices = graph.new(shape, x.dtype), graph.new(shape, I64)
    sort_into(graph, x, values, indices, dim, False, kept)
    sizes = [1 if d == dim else size for d, size in enumerate(line.sizes)]
    results = []
    for source in (values, indices):
        out = graph.new(sizes if x.ndim else (), source.dtype)
        chosen = [source.narrow(dim, k - 1, 1)]
        expr, c = "{0}", source.dtype.cls
        if nan and x.dtype.is_float:
            chosen += [source.narrow(dim, n - 1, 1), values.narrow(dim, n - 1, 1)]
            expr = "select({0}, {1}, isnan_({2}))"
        emit(graph, expr, chosen, [c, c, "f"][: len(chosen)], c, lined(out), "order_statistic")
        final = [size for d, size in enumerate(sizes) if keepdim or d != dim] if x.ndim else []
        results.append(out.reshape(final))
    return results[0], results[1]


@lower("kthvalue", out="values", results=2)
def _kthvalue(graph: Graph, x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    d = normal_dim(dim, x.ndim)
    if not 1 <= k <= lined(x).sizes[d]:
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {d}")
    return _ranked(graph, x, k, d, keepdim, False)


@lower("median.dim", out="dim_values", results=2)
def _median_dim(graph: Graph, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    d = normal_dim(dim, x.ndim)
    n = lined(x).sizes[d]
    if n == 0:
        raise IndexError(f"median(): Expected reduction dim {d} to have non-zero size.")
    return _ranked(graph, x, (n + 1) // 2, d, keepdim, True)


@lower("median")
def _median(graph: Graph, x: Tensor) -> Tensor:
    if x.numel == 0:
        out = graph.new((), x.dtype)
        emit(graph, "{0}", [float("nan") if x.dtype.is_float else 0], [x.dtype.cls], x.dtype.cls, out, "fill")
        return out
    flat = contiguous(graph, x).reshape((x.numel,))
    return _ranked(graph, flat, (x.numel + 1) // 2, 0, False, True)[0]


# ---------------------------------------------------------------------------------------------------- binary search


def _at_least(cls: str, strict: bool) -> str:
    """WGSL of ``reached``: whether a boundary is ≥ (> if strict) a value; false where NaN takes part."""
    t = wgsl.TYPE[cls]
    expr = {"l": "lt64(v, a)" if strict else "!lt64(a, v)", "i": "a > v" if strict else "a >= v"}
    expr["f"] = f"!isnan_(a) && !isnan_(v) && {expr['i']}"
    return f"fn reached(a: {t}, v: {t}) -> bool {{ return {expr[cls]}; }}\n"


def search(
    graph: Graph, edges: Tensor, x: Tensor | Scalar | float, int32: bool, right: bool, sorter: Tensor | None
) -> Tensor:
    """For each value, how many of its row's ascending ``edges`` lie before it (``right``: or equal it)."""
    shape = x.sizes if isinstance(x, Tensor) else ()
    if edges.ndim != 1 and (not isinstance(x, Tensor) or edges.sizes[:-1] != shape[:-1]):
        raise RuntimeError(
            "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries "
            "tensor and input value tensor must match, but we got boundaries tensor "
            f"{list(edges.sizes)} and input value tensor {list(shape)}"
        )
    cls = result_dtype(edges, x).cls if not isinstance(x, Tensor) else wgsl.promote(edges.dtype, x.dtype).cls
    cls = "i" if cls == "b" else cls
    out = graph.new(shape, I32 if int32 else I64)
    total, n = product(shape), edges.sizes[-1]
    if total == 0:
        return out
    if n == 0:
        return fill(graph, out, 0)
    edges = contiguous(graph, edges)
    args = [("o", out, "w"), ("a", edges, "r")]
    if isinstance(x, Tensor):
        args.append(("x", contiguous(graph, x), "r"))
    if sorter is not None:
        args.append(("s", contiguous(graph, sorter), "r"))

    def words(w: Words) -> None:
        w.u32("total", total)
        w.u32("n", n)
        w.u32("row", shape[-1] if edges.ndim > 1 else total)
        if not isinstance(x, Tensor):
            w.number("x", x, cls)

    def source(w: Words) -> str:
        value = cast("ld_x(i)", x.dtype.cls, cls) if isinstance(x, Tensor) else w.expr("x", cls)
        at = "start + ld_s(start + m).x" if sorter is not None else "start + m"
        return (
            _at_least(cls, right)
            + MAIN.format(wg=WORKGROUP)
            + f"""let i = {LINEAR.format(wg=WORKGROUP)};
if (i >= {w.total}) {{ return; }}
let v = {value}; let start = (i / {w.row}) * {w.n};
var low = 0u; var high = {w.n};
while (low < high) {{
  let m = (low + high) / 2u;
  if (reached({cast(f"ld_a({at})", edges.dtype.cls, cls)}, v)) {{ high = m; }} else {{ low = m + 1u; }}
}}
st_o(i, {"bitcast<i32>(low)" if int32 else "vec2<u32>(low, 0u)"});
}}"""
        )

    static = (cls, right, isinstance(x, Tensor), sorter is not None)
    graph.launch("search", args, words, source, grid(total, WORKGROUP), static)
    return out


@lower("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(
    graph: Graph,
    edges: Tensor,
    x: Tensor | Scalar | float,
    int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    if side not in (None, "left", "right"):
        raise RuntimeError(f"torch.searchsorted(): side can only be 'left' or 'right' but got {side}")
    if side == "left" and right:
        raise RuntimeError(
            "torch.searchsorted(): side and right can't be set to opposites, got side of left while right was True"
        )
    return search(graph, edges, x, int32, right or side == "right", sorter)


@lower("bucketize.Tensor", "bucketize.Scalar")
def _bucketize(graph: Graph, x: Tensor | Scalar | float, edges: Tensor, int32: bool = False, right: bool = False) -> Tensor:
    if edges.ndim != 1:
        raise RuntimeError(f"bucketize(): boundaries tensor must be 1 dimension, but got dim({edges.ndim})")
    return search(graph, edges, x, int32, right, None)


fallback("histograms are for inspection", "histogram.bin_ct", "histogram.bins_tensor")
fallback(
    "factorisations are sequential; LAPACK does small ones faster",
    "linalg_inv_ex",
    "linalg_inv_ex.inverse",
    "_linalg_solve_ex",
    "_linalg_solve_ex.result",
    "linalg_cholesky_ex",
    "linalg_cholesky_ex.L",
    "linalg_qr",
    "linalg_qr.out",
    "_linalg_svd",
    "_linalg_svd.U",
    "_linalg_eigh",
    "_linalg_eigh.eigenvalues",
    "_linalg_det",
    "_linalg_det.result",
    "_linalg_slogdet",
    "_linalg_slogdet.sign",
    "linalg_lu_factor_ex",
    "linalg_lu_factor_ex.out",
    "linalg_lu",
    "linalg_lu.out",
    "linalg_lu_solve",
    "linalg_lu_solve.out",
    "linalg_lstsq",
    "linalg_solve_triangular",
    "linalg_solve_triangular.out",
    "triangular_solve",
    "triangular_solve.X",
    "cholesky_inverse",
    "cholesky_solve",
    "linalg_matrix_exp",
)
