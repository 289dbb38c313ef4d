"""Decoding of Qwen2.5-shaped models with random weights: the compiled plan, beside torch.compile on CUDA in the same run."""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import gc
import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, StaticCache

import torch_webgpu
from torch_webgpu.bench.models import SHAPES
from torch_webgpu.compiler.backend import compiled
from torch_webgpu.llm import Generator
from torch_webgpu.llm.quant import quantise

SIZES = {size: SHAPES[f"Qwen2.5-{size}"] for size in ("0.5B", "1.5B")}
PROMPT = 16
_UNFUSED = {"max_fusion_size": 1, "epilogue_fusion": False, "triton.cudagraphs": True}  # Inductor: a kernel an op, replayed


def make_model(size: str, dtype: str, layers: int | None) -> Any:
    """A model with random weights, on the CPU."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {**SIZES[size], **({"num_hidden_layers": layers} if layers else {})}
    config = Qwen2Config(**shape)
    return Qwen2ForCausalLM(config).to(getattr(torch, dtype)).eval()


def rates(step: Any, wait: Any, tokens: int, runs: int) -> list[float]:
    """Tokens a second of ``step(tokens)`` with one wait at the end of each run."""
    found = []
    for _ in range(runs):
        start = time.perf_counter()
        step(tokens)
        wait()
        found.append(tokens / (time.perf_counter() - start))
    return found


def on_webgpu(model: Any, length: int, tokens: int, runs: int, detail: bool, prompts: bool) -> dict[str, Any]:
    """Compiled decoding: device-resident loop, and the same through the streaming generator; ``prompts``: compiled too."""
    weights = sum(t.numel() * t.element_size() for t in {*model.parameters(), *model.buffers()})
    torch.webgpu.synchronize()  # type: ignore[attr-defined]
    start = time.perf_counter()
    generator = Generator(model, length, compile_prompts=prompts)
    prompt = torch.arange(1, PROMPT + 1)
    generator.prefill(prompt)
    torch.webgpu.synchronize()  # type: ignore[attr-defined]
    prefilled = time.perf_counter()
    generator.advance(1)
    torch.webgpu.synchronize()  # type: ignore[attr-defined]
    ready = time.perf_counter()

    def steps(count: int) -> None:
        generator.prefill(prompt)
        generator.advance(count)

    steps(tokens)
    generator.prefill(prompt)
    torch.webgpu.synchronize()  # type: ignore[attr-defined]
    loop = []
    for _ in range(runs):
        generator.prefill(prompt)
        torch.webgpu.synchronize()  # type: ignore[attr-defined]
        loop += rates(generator.advance, torch.webgpu.synchronize, tokens, 1)  # type: ignore[attr-defined]
    start_stream = time.perf_counter()
    streamed = list(generator.stream(prompt, tokens, eos=()))
    stream = len(streamed) / (time.perf_counter() - start_stream)
    assert generator._step is not None
    plan = generator._step[0].plans[-1]
    parts = breakdown(generator) if detail else []
    return {
        "tokens_per_second": loop,
        "median": statistics.median(loop),
        "streamed": stream,
        "first_prefill_s": prefilled - start,
        "compile_s": ready - prefilled,
        "dispatches": len(plan.dispatches),
        "kernels": dict(collections.Counter(f"{d.name} / {d.kernel}" for d in plan.dispatches)),
        "bytes_read": sum(d.read for d in plan.dispatches),
        "arenas": list(plan.arenas),
        "weights": weights,
        "memory": torch.webgpu.memory_stats(),  # type: ignore[attr-defined]
        "tokens": streamed[:16],
        "breakdown": parts,
    }


def breakdown(generator: Generator) -> list[dict[str, Any]]:
    """Time of each kind of launch, all layers' launches of the kind in a row: what a token spends where.

    Launches of one kind read each layer's own weights, so that the GPU's cache does not serve them.
    """
    assert generator._step is not None
    graph, inputs = generator._step
    plan = graph.plans[-1]
    outputs, temps, steps, may_fail, _, returned = plan.recipe
    kinds: dict[str, list[int]] = collections.defaultdict(list)
    for i, d in enumerate(plan.dispatches):
        kinds[f"{d.name} / {d.kernel} {d.groups}"].append(i)
    found: list[dict[str, Any]] = []

    def seconds(extra: list[Any]) -> float:
        """The whole plan once, so that what the launches read is there, and then them."""
        recipe = (outputs, temps, steps + extra, may_fail, False, returned)
        handle = torch_webgpu._C.make_plans("breakdown", lambda _: recipe)
        times = []
        for _ in range(5):
            generator.cache.rewind()
            generator._count.zero_()
            torch.webgpu.synchronize()  # type: ignore[attr-defined]
            start = time.perf_counter()
            torch_webgpu._C.run_plans(handle, list(inputs), 1)
            with contextlib.suppress(IndexError, RuntimeError):  # out of their order they may find garbage, and complain
                torch.webgpu.synchronize()  # type: ignore[attr-defined]
            times.append(time.perf_counter() - start)
        return min(times[1:])

    once = seconds([])
    for kind, places in kinds.items():
        repeat = max(1, 240 // len(places))
        each = (seconds([steps[i] for i in places] * repeat) - once) / repeat / len(places) * 1e6
        size = sum(plan.dispatches[i].read for i in places) / len(places)
        row = {"kind": kind, "count": len(places), "us": each, "us_per_token": each * len(places), "gb_s": size / each / 1e3}
        found.append(row)
    found.sort(key=lambda r: -r["us_per_token"])
    generator.cache.rewind()
    generator._count.zero_()
    return found


def on_cuda(model: Any, length: int, tokens: int, runs: int, mode: str) -> dict[str, Any]:
    """torch.compile with a static cache and the argmax on the device; ``unfused`` is CUDA graphs of a kernel an op."""
    cache = StaticCache(config=model.config, max_cache_len=length)
    prompt = torch.arange(1, PROMPT + 1, device="cuda")[None]
    with torch.inference_mode():
        logits = model(prompt, past_key_values=cache).logits

    def forward(token: torch.Tensor) -> torch.Tensor:
        return model(token, past_key_values=cache).logits[:, -1:].argmax(-1)

    how: dict[str, Any] = {"options": _UNFUSED} if mode == "unfused" else {"mode": mode}
    step = torch.compile(forward, fullgraph=True, **how) if mode != "eager" else forward
    state = {"token": logits[:, -1:].argmax(-1)}

    def steps(count: int) -> None:
        layers: list[Any] = cache.layers
        with torch.inference_mode():
            for layer in layers:
                layer.cumulative_length.fill_(PROMPT)
            for _ in range(count):
                state["token"] = step(state["token"]).clone()

    start = time.perf_counter()
    steps(3)
    torch.cuda.synchronize()
    compile_s = time.perf_counter() - start
    steps(tokens)
    found = rates(steps, torch.cuda.synchronize, tokens, runs)
    return {"tokens_per_second": found, "median": statistics.median(found), "compile_s": compile_s}


def variants(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """(device, variant): fusion levels and kinds of weights on webgpu, modes of torch.compile on CUDA."""
    for device in args.devices.split(","):
        for variant in (args.levels if device == "webgpu" else args.cuda_modes).split(","):
            yield device, variant


def measure(args: argparse.Namespace, model: Any, size: str, dtype: str, device: str, variant: str) -> dict[str, Any]:
    """One line of the result, with a copy of the model."""
    row: dict[str, Any] = {"size": size, "dtype": dtype, "device": device, "variant": variant, "torch": torch.__version__}
    torch._dynamo.reset()  # levels differ in nothing that Dynamo looks at
    model = copy.deepcopy(model).to(device)
    if device != "webgpu":
        return row | on_cuda(model, args.length, args.tokens, args.runs, variant)
    properties = torch.webgpu.get_device_properties()  # type: ignore[attr-defined]
    row |= {"adapter": properties.name, "implementation": properties.implementation}
    quantised_to = variant if variant in ("int8", "int4") else None
    if quantised_to is not None:
        model = quantise(model, quantised_to)  # type: ignore[arg-type]
    level = "full" if quantised_to else variant
    object.__setattr__(torch_webgpu.config.config, "fusion", level)  # as TORCH_WEBGPU_FUSION, for a process that tries all
    return row | on_webgpu(
        model, args.length, args.tokens, args.runs, args.breakdown, variant in args.plan_prompts.split(",")
    )


def main() -> None:
    """Measures and prints; ``--out`` writes JSON after every line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sizes", default="0.5B", help="of " + ", ".join(SIZES))
    parser.add_argument("--dtypes", default="float32,float16")
    parser.add_argument("--devices", default="webgpu", help="webgpu, cuda, or both")
    parser.add_argument("--levels", default="full", help="of none, pointwise, full, and int8, int4 (weights)")
    parser.add_argument("--plan-prompts", default="full", help="levels whose prompt is compiled too; 'nothing' for none")
    parser.add_argument("--cuda-modes", default="reduce-overhead", help="of torch.compile's modes, unfused, and eager")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--breakdown", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for size in args.sizes.split(","):
        for dtype in args.dtypes.split(","):
            model = make_model(size, dtype, args.layers)
            for device, variant in variants(args):
                start = time.perf_counter()
                try:
                    rows.append(measure(args, model, size, dtype, device, variant))
                except RuntimeError as e:
                    rows.append({"size": size, "dtype": dtype, "device": device, "variant": variant, "error": repr(e)})
                rows[-1]["took_s"] = time.perf_counter() - start
                compiled.clear()  # it holds the plans
                gc.collect()
                hidden = ("tokens_per_second", "memory", "kernels", "breakdown", "tokens")
                print(json.dumps({k: v for k, v in rows[-1].items() if k not in hidden}), flush=True)
                for part in rows[-1].get("breakdown", []):
                    print("  {us_per_token:8.1f} us {count:4d} x {us:7.2f} us {gb_s:7.0f} GB/s  {kind}".format(**part))
                if args.out:
                    args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
