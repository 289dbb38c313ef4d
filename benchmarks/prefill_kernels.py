"""Time of a launch of the kernels of prompt processing and of decode attention, beside CUDA's where there is any.

``python -m benchmarks.prefill_kernels --json FILE`` runs launches back to back over rotated inputs: neither the host nor
the caches of the GPU are measured. ``--sweep`` tries every tile and split of the products, and shapes of decode attention.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

import torch_webgpu
from torch_webgpu import _C
from torch_webgpu.kernels import decode_attention as decode
from torch_webgpu.kernels import gemm as products
from torch_webgpu.recipe import Graph, Tensor
from torch_webgpu.registry import lower

COLD = 96 << 20  # bytes of rotated inputs: more than a GPU's caches hold
LAUNCHES = 24  # of one recorded run
Tensors = list[torch.Tensor]

_library = torch.library.Library("webgpu", "FRAGMENT")
_library.define("bench_gemm(Tensor[] a, Tensor[] b, Tensor(a!) out, int repeat) -> Tensor(a!)")
_library.define(
    "bench_decode(Tensor qkv, Tensor[] caches, Tensor(a!) out, Tensor position, Tensor rope, float scale, int repeat) "
    "-> Tensor(a!)"
)


@lower("webgpu::bench_gemm")
def _gemm(graph: Graph, a: list[Tensor], b: list[Tensor], out: Tensor, repeat: int) -> Tensor:
    for i in range(repeat):
        products.gemm(graph, a[i % len(a)], b[i % len(b)].transpose(0, 1), out)
    return out


@lower("webgpu::bench_decode")
def _decode(
    graph: Graph, qkv: Tensor, caches: list[Tensor], out: Tensor, position: Tensor, rope: Tensor, scale: Any, repeat: int
) -> Tensor:
    h, groups = out.sizes[1], caches[0].sizes[1]
    q, k, v = (qkv.narrow(1, s, n) for s, n in ((0, h), (h, groups), (h + groups, groups)))
    angles = decode.Rope(rope.narrow(0, 0, 1), rope.narrow(0, 1, 1))
    for i in range(repeat):
        pair = caches[2 * i % len(caches) : 2 * i % len(caches) + 2]
        decode.decode_attention(
            graph, q, k, v, pair[0], pair[1], out, position=position, mask=None, scale=scale, rope=angles
        )
    return out


@dataclass(frozen=True)
class Case:
    """A kernel on given shapes.

    Attributes:
        run: makes a function of the device and the number of launches that launches them.
        flops: floating-point operations of a launch.
        bytes: least memory traffic of a launch.
    """

    name: str
    make: Callable[[str], Callable[[int], None]]
    flops: float
    bytes: float


def _noise(device: str, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if math.prod(shape) > 1 << 24:  # pieces that any binding covers
        return torch.cat([_noise(device, dtype, shape[0] // 8, *shape[1:]) for _ in range(8)])
    return torch.randn(shape, dtype=dtype, device=device)


def gemm_case(m: int, k: int, n: int, dtype: torch.dtype) -> Case:
    """A linear layer without bias: (m, k) @ (n, k).T."""

    def make(device: str) -> Callable[[int], None]:
        copies = max(1, min(8, COLD // ((m + n) * k * dtype.itemsize)))
        a = [_noise(device, dtype, m, k) for _ in range(copies)]
        b = [_noise(device, dtype, n, k) for _ in range(copies)]
        out = torch.empty(m, n, dtype=dtype, device=device)

        def run(launches: int) -> None:
            if device == "webgpu":
                torch.ops.webgpu.bench_gemm(a, b, out, launches)
            else:
                for i in range(launches):
                    torch.mm(a[i % copies], b[i % copies].t(), out=out)

        return run

    size = dtype.itemsize * (m * k + n * k + m * n)
    return Case(f"gemm {m}x{k}x{n} {_short(dtype)}", make, 2.0 * m * n * k, size)


def prompt_case(heads: int, groups: int, dim: int, length: int, dtype: torch.dtype) -> Case:
    """Causal attention of a whole prompt."""

    def make(device: str) -> Callable[[int], None]:
        shapes = ((1, length, heads, dim), (1, length, groups, dim), (1, length, groups, dim))
        copies = max(1, min(8, COLD // (sum(map(math.prod, shapes)) * dtype.itemsize)))
        sets = [[_noise(device, dtype, *s).transpose(1, 2) for s in shapes] for _ in range(copies)]

        def run(launches: int) -> None:
            for i in range(launches):
                q, k, v = sets[i % copies]
                F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=groups != heads)

        return run

    size = dtype.itemsize * length * dim * (2 * heads + 2 * groups)
    flops = 2.0 * heads * length * length * dim  # half of the scores are needed
    return Case(f"prompt {heads}/{groups}x{dim} {length} {_short(dtype)}", make, flops, size)


def decode_case(heads: int, groups: int, dim: int, slots: int, position: int, dtype: torch.dtype) -> Case:
    """One query row a head over a cache; CUDA's has neither rotary embedding nor update, and a cache cut to length."""

    def make(device: str) -> Callable[[int], None]:
        copies = max(1, min(24, COLD // (2 * groups * slots * dim * dtype.itemsize)))
        caches = [_noise(device, dtype, 1, groups, slots, dim) for _ in range(2 * copies)]
        qkv = _noise(device, dtype, 1, 1, heads + 2 * groups, dim).transpose(1, 2)
        out = torch.empty(1, 1, heads, dim, dtype=dtype, device=device).transpose(1, 2)
        rope = _noise(device, torch.float32, 2, 1, dim)
        at = torch.tensor([position], device=device)
        cut = [c[:, :, : position + 1] for c in caches]

        def run(launches: int) -> None:
            if device == "webgpu":
                torch.ops.webgpu.bench_decode(qkv, caches, out, at, rope, dim**-0.5, launches)
                return
            for i in range(launches):
                k, v = cut[2 * i % len(cut)], cut[2 * i % len(cut) + 1]
                F.scaled_dot_product_attention(qkv[:, :heads], k, v, enable_gqa=True)

        return run

    size = dtype.itemsize * dim * (2 * groups * (position + 1) + 2 * heads)
    return Case(
        f"decode {heads}/{groups}x{dim} {position + 1}/{slots} {_short(dtype)}",
        make,
        4.0 * heads * dim * (position + 1),
        size,
    )


def _short(dtype: torch.dtype) -> str:
    return {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]


def cases(small: bool) -> list[Case]:
    """All cases, the most telling ones first; ``small`` ones for a CPU."""
    f32, f16 = torch.float32, torch.float16
    if small:
        return [
            gemm_case(64, 128, 192, f32),
            gemm_case(64, 128, 192, f16),
            prompt_case(4, 2, 64, 64, f32),
            decode_case(14, 2, 64, 256, 255, f32),
            decode_case(14, 2, 64, 256, 255, f16),
        ]
    layer = ((512, 896, 4864), (512, 4864, 896), (512, 896, 896), (512, 896, 1152), (512, 896, 151936))
    found = [gemm_case(*shape, f32) for shape in layer]
    found += [decode_case(14, 2, 64, slots, slots - 1, d) for d in (f32, f16) for slots in (256, 1024, 2048)]
    found += [prompt_case(14, 2, 64, length, f32) for length in (512, 2048)]
    found += [gemm_case(*shape, f16) for shape in layer]
    found += [gemm_case(m, 896, 4864, f32) for m in (16, 64, 128)]
    found += [decode_case(14, 2, 64, 2048, position, f32) for position in (63, 511, 1023)]
    found += [decode_case(12, 2, 128, slots, slots - 1, d) for d in (f16, f32) for slots in (256, 2048)]
    found += [prompt_case(14, 2, 64, 512, f16), prompt_case(12, 2, 128, 512, f32), prompt_case(14, 2, 64, 64, f32)]
    found += [gemm_case(512, 1536, 8960, f16), gemm_case(512, 8960, 1536, f16), gemm_case(2048, 2048, 2048, f32)]
    return found


# ---------------------------------------------------------------------------------------------------- timing


def _wait(device: str) -> None:
    _C.synchronize() if device == "webgpu" else torch.cuda.synchronize()


def microseconds(run: Callable[[int], None], device: str, launches: int = LAUNCHES, tries: int = 3) -> float:
    """Time of a launch: the difference between a long and a short run, each waited for once; the shortest counts."""

    def took(times: int) -> float:
        _wait(device)
        start = time.perf_counter()
        for _ in range(times):
            step()
        _wait(device)
        return time.perf_counter() - start

    step: Callable[[], Any] = lambda: run(launches)  # noqa: E731
    step()
    _wait(device)
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(launches)
        step = graph.replay
    once = took(1)
    short = max(1, min(20, int(0.02 / max(once, 1e-6))))
    return max(0.0, min(took(3 * short) - took(short) for _ in range(tries))) / (2 * short * launches) * 1e6


@contextmanager
def _changed(module: Any, name: str, value: Any) -> Iterator[None]:
    old = getattr(module, name)
    setattr(module, name, value)
    _C.clear_recipes()
    try:
        yield
    finally:
        setattr(module, name, old)
        _C.clear_recipes()


def sweep(case: Case, run: Callable[[int], None], launches: int) -> dict[str, float]:
    """Microseconds of other shapes of the same kernel."""
    found = {}
    if case.name.startswith("gemm"):
        m, k, n = (int(x) for x in case.name.split()[1].split("x"))
        for name in ("_LARGE", "_SQUARE", "_SMALL", "_LOW", "_LOWEST"):
            tile = getattr(products, name)
            if m > 64 and name in ("_LOW", "_LOWEST"):
                continue
            for splits in (1, 2, 4, 8, 16):
                chunk = -(-k // (splits * products.DEPTH)) * products.DEPTH
                if chunk < 32 or (splits > 1 and splits * m * n > 1 << 24):
                    continue
                choice = (tile, -(-k // chunk), chunk)
                with _changed(products, "_choose", lambda *_, choice=choice: choice):
                    found[f"{name[1:].lower()} / {splits}"] = microseconds(run, "webgpu", launches, 1)
    elif case.name.startswith("decode"):
        for heads in (1, 8):
            for spread in (32, 64, 128, 256):
                with _changed(decode, "MOST_HEADS", heads), _changed(decode, "SPREAD", spread):
                    found[f"{heads} heads, {spread} workgroups"] = microseconds(run, "webgpu", launches, 1)
        with _changed(decode, "SHORT", 1 << 20):
            found["one launch"] = microseconds(run, "webgpu", launches, 1)
    return found


def main() -> None:
    """Reads the arguments, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--time-limit", type=float, default=100.0, help="seconds")
    parser.add_argument("--only", help="cases whose name has this in it")
    parser.add_argument("--sweep", action="store_true", help="also other shapes of each kernel")
    args = parser.parse_args()
    properties = torch.webgpu.get_device_properties()  # type: ignore[attr-defined]
    print(f"{properties.name} ({properties.implementation})")
    from torch_webgpu import runtime

    small = runtime.device().adapter.kind == "cpu"
    end = time.perf_counter() + args.time_limit
    chosen = [c for c in cases(small) if not args.only or args.only in c.name]
    results: list[dict[str, Any]] = []
    with torch.inference_mode():
        for case in chosen:
            if time.perf_counter() > end:
                print(f"out of time: {len(chosen) - len(results)} cases were not measured")
                break
            run = case.make("webgpu")
            launches = 2 if small else max(2, min(LAUNCHES, int(2e11 / case.flops)))
            result: dict[str, Any] = {"name": case.name, "webgpu_us": microseconds(run, "webgpu", launches)}
            if args.sweep:
                result["sweep_us"] = sweep(case, run, launches)
            if torch.cuda.is_available():
                result["cuda_us"] = microseconds(case.make("cuda"), "cuda", launches)
            us = max(result["webgpu_us"], 1e-3)
            result |= {"tflops": case.flops / us / 1e6, "gbs": case.bytes / us / 1e3}
            beside = f"  cuda {result['cuda_us']:9.2f} us" if "cuda_us" in result else ""
            print(
                f"{case.name:34} {us:9.2f} us {result['tflops']:7.2f} TFLOP/s {result['gbs']:7.0f} GB/s{beside}", flush=True
            )
            for name, took in sorted(result.get("sweep_us", {}).items(), key=lambda item: item[1])[:8]:
                print(f"    {name:28} {took:9.2f} us")
            results.append(result)
            del run
            torch.webgpu.empty_cache()  # type: ignore[attr-defined]
    if args.json:
        environment = {
            "adapter": properties.name,
            "implementation": properties.implementation,
            "driver": properties.driver,
            "torch": torch.__version__,
            "torch_webgpu": torch_webgpu.__version__,
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"environment": environment, "cases": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
