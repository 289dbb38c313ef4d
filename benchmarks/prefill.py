"""Prefill of Qwen2.5-shaped models with random weights: eager and as a plan, beside CUDA in the same run."""

from __future__ import annotations

import argparse
import collections
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, StaticCache

import torch_webgpu
from benchmarks.decode import SIZES
from torch_webgpu.compiler.backend import compiled
from torch_webgpu.llm import Generator


def timed(run: Callable[[], Any], wait: Callable[[], Any], runs: int) -> list[float]:
    """Seconds of each run with a wait at its end."""
    found = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        wait()
        found.append(time.perf_counter() - start)
    return found


def summary(seconds: list[float], tokens: int, first: float) -> dict[str, Any]:
    """What every row holds."""
    median = statistics.median(seconds)
    return {"seconds": seconds, "median_s": median, "tokens_per_second": tokens / median, "first_s": first}


def on_webgpu(model: Any, prompt: torch.Tensor, length: int, runs: int, eager: bool) -> dict[str, Any]:
    """The generator's prefill, or the model called as it is over the same cache."""
    model = model.to("webgpu")
    wait = torch.webgpu.synchronize  # type: ignore[attr-defined]
    wait()
    generator = Generator(model, length)
    ids = prompt.to("webgpu")

    @torch.no_grad()
    def plain() -> None:
        generator.cache.rewind()
        with generator.cache.filling():
            model(input_ids=ids, use_cache=True, logits_to_keep=1, **generator._with_cache).logits[:, -1].argmax(-1)

    def planned() -> None:
        generator.prefill(prompt)

    run = plain if eager else planned
    (first,) = timed(run, wait, 1)
    timed(run, wait, 2)
    row = summary(timed(run, wait, runs), prompt.shape[1], first)
    if not eager:
        plan = compiled[-1].plans[-1]
        row["dispatches"] = len(plan.dispatches)
        row["kernels"] = dict(collections.Counter(f"{d.name} / {d.kernel}" for d in plan.dispatches))
    return row


def on_cuda(model: Any, prompt: torch.Tensor, length: int, runs: int, eager: bool) -> dict[str, Any]:
    """The model with a static cache, eager or through torch.compile; float32 products as PyTorch does them by default."""
    torch._dynamo.reset()
    model = model.to("cuda")
    cache = StaticCache(config=model.config, max_cache_len=length)
    ids = prompt.to("cuda")

    def forward() -> torch.Tensor:
        return model(ids, past_key_values=cache, logits_to_keep=1).logits[:, -1].argmax(-1)

    step = forward if eager else torch.compile(forward)

    @torch.inference_mode()
    def run() -> None:
        cache.reset()
        step()

    (first,) = timed(run, torch.cuda.synchronize, 1)
    timed(run, torch.cuda.synchronize, 2)
    return summary(timed(run, torch.cuda.synchronize, runs), prompt.shape[1], first)


def main() -> None:
    """Measures and prints; ``--out`` writes JSON after every line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sizes", default="0.5B")
    parser.add_argument("--dtype", default="float32", help="one or more, separated by commas")
    parser.add_argument("--devices", default="webgpu")
    parser.add_argument("--modes", default="eager,compiled")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--hidden", type=int, help="width of a smaller model, a multiple of 128")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--runs", type=int, default=10)
    args = parser.parse_args()
    rows = []
    for size in args.sizes.split(","):
        for dtype in args.dtype.split(","):
            torch.manual_seed(0)
            shape = {**SIZES[size], **({"num_hidden_layers": args.layers} if args.layers else {})}
            if args.hidden:
                heads = {"num_attention_heads": args.hidden // 64, "num_key_value_heads": args.hidden // 128}
                shape |= {"hidden_size": args.hidden, "intermediate_size": 4 * args.hidden, "vocab_size": 1024, **heads}
            model = Qwen2ForCausalLM(Qwen2Config(**shape)).to(getattr(torch, dtype)).eval()
            prompt = torch.randint(0, shape["vocab_size"], (1, args.tokens))
            for device in args.devices.split(","):
                for mode in args.modes.split(","):
                    row: dict[str, Any] = {"size": size, "dtype": dtype, "device": device, "mode": mode}
                    row |= {"tokens": args.tokens, "torch": torch.__version__, "layers": shape["num_hidden_layers"]}
                    row["hidden"] = shape["hidden_size"]
                    if device == "webgpu":
                        properties = torch.webgpu.get_device_properties()  # type: ignore[attr-defined]
                        row |= {"adapter": properties.name, "implementation": properties.implementation}
                        row["fusion"] = torch_webgpu.config.config.fusion
                    on = on_webgpu if device == "webgpu" else on_cuda
                    row |= on(model, prompt, args.tokens + 16, args.runs, mode == "eager")
                    rows.append(row)
                    print(json.dumps({k: v for k, v in row.items() if k not in ("seconds", "kernels")}), flush=True)
                    if args.out:
                        args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
