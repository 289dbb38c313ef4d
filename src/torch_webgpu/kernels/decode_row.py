"""Decode attention over a cache of moderate length in one launch: a workgroup for each query row.

A row's scores stay in workgroup memory, so keys and values are each read once, values while the scores are worked out.
Query heads that share a key/value head read its rows again, from the GPU's cache.
"""

from __future__ import annotations

from .. import wgsl
from ..recipe import Graph, Tensor, Words
from ..runtime import target
from ..wgsl import F16, F32
from . import render
from .decode_operands import Call, fill_words, store, whole_rows

WORKGROUP = 256
LANES = 8  # invocations a key
LONGEST = 2048  # slots; beyond, a row is worth several workgroups
UNROLL = 4  # keys an invocation reads at once
AHEAD = 8  # values an invocation reads at once
_SMALLEST_SUBGROUP = 4


def takes_row(call: Call) -> bool:
    """Whether ``launch_row`` takes the case."""
    caches = (call.k_cache, call.v_cache)
    return (
        call.mask is None
        and call.k_cache.sizes[2] <= LONGEST
        and "subgroups" in target().features
        and target().adapter.kind != "cpu"  # whose shader compilers take long over it
        and all(_in_quads(t) for t in caches)
        and _buffers(call) <= target().limits["maxStorageBuffersPerShaderStage"]
        and _shared_bytes(call, _workgroup(call)) <= target().limits["maxComputeWorkgroupStorageSize"]
    )


def _in_quads(t: Tensor) -> bool:
    """Whether every row is whole runs of four words."""
    per = 16 // t.dtype.itemsize
    return (
        t.dtype.itemsize in (2, 4)
        and whole_rows(t)
        and t.sizes[3] % per == 0
        and t.aligned(16)
        and all(s % per == 0 for n, s in zip(t.sizes[:3], t.strides[:3], strict=True) if n > 1)
    )


def _buffers(call: Call) -> int:
    rope = () if call.rope is None else (call.rope.cos, call.rope.sin)
    operands = (call.q, call.k, call.v, call.k_cache, call.v_cache, call.out, call.position, *rope)
    return len({t.buffer for t in operands if t is not None}) + (call.position is not None)


def _workgroup(call: Call) -> int:
    """Invocations of a workgroup: as many as there are elements in a row, at least."""
    limits = target().limits
    size = min(WORKGROUP, limits["maxComputeInvocationsPerWorkgroup"], limits["maxComputeWorkgroupSizeX"])
    while size > 256 and _shared_bytes(call, size) > limits["maxComputeWorkgroupStorageSize"]:
        size //= 2
    return size


def _slots(call: Call) -> int:
    """Scores kept, in steps, so that few pipelines serve many lengths."""
    return -(-call.k_cache.sizes[2] // 256) * 256


def _columns(call: Call) -> int:
    return call.dim * call.k_cache.dtype.itemsize // 16


def _shared_bytes(call: Call, workgroup: int) -> int:
    """Workgroup memory that the template declares, in bytes."""
    parts = workgroup // _columns(call)
    return 4 * (3 * call.dim + _slots(call) + 3 * (workgroup // _SMALLEST_SUBGROUP) + parts * call.dim + 4)


def launch_row(graph: Graph, call: Call) -> None:
    """Adds the launch to the graph; see ``decode_attention`` for what it computes."""
    b, h, _, d = call.q.sizes
    args = [("q", call.q, "r"), ("kc", call.k_cache, "v"), ("vc", call.v_cache, "v")]
    if call.k is not None and call.v is not None:
        args = [
            ("q", call.q, "r"),
            ("kc", call.k_cache, "V"),
            ("vc", call.v_cache, "V"),
            ("k", call.k, "r"),
            ("v", call.v, "r"),
        ]
    if call.rope is not None:
        args += [("cos", call.rope.cos, "r"), ("sin", call.rope.sin, "r")]
    if call.position is not None:
        args += [("pos", call.position, "r"), ("e", graph.error_tensor(), "a")]
    args.append(("o", call.out, "p" if call.out.dtype.packed and whole_rows(call.out) else "w"))
    workgroup, slots = _workgroup(call), _slots(call)
    static = (
        d,
        workgroup,
        slots,
        LANES,
        UNROLL,
        AHEAD,
        call.k is not None,
        call.rope is not None,
        call.position is not None,
    )

    def source(w: Words) -> str:
        return _source(w, call, args[-1][2], workgroup, slots)

    graph.launch("decode_row", args, lambda w: fill_words(w, call), source, (h, b, 1), static)


def _source(w: Words, call: Call, out_mode: str, workgroup: int, slots: int) -> str:
    dtype, columns = call.k_cache.dtype, _columns(call)
    lanes = min(LANES, 1 << (columns - 1).bit_length())
    quad = "quad_f16" if dtype is F16 else "quad_bf16"
    return render(
        "decode_row",
        w=w,
        workgroup=workgroup,
        slots=slots,
        D=call.dim,
        lanes=lanes,
        columns=columns,
        per_lane=-(-columns // lanes),
        parts=workgroup // columns,
        runs=workgroup // _SMALLEST_SUBGROUP,
        smallest_subgroup=_SMALLEST_SUBGROUP,
        unroll=UNROLL,
        ahead=AHEAD,
        itemsize=dtype.itemsize,
        unpack=["bitcast<vec4<f32>>(w)"] if dtype is F32 else [f"{quad}(w.xy)", f"{quad}(w.zw)"],
        bits="f16bits" if dtype is F16 else "bf16bits",
        fresh=call.k is not None,
        rope=call.rope is not None,
        position="" if call.position is None else wgsl.cast("ld_pos(0u)", call.position.dtype.cls, "l"),
        out=store(call.out, out_mode),
    )
