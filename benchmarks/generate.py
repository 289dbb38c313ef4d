"""Unmodified Hugging Face eager ``generate`` of a Qwen2.5-0.5B with random weights: tokens a second by device."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import torch_webgpu
from torch_webgpu.bench.models import SHAPES

QWEN2_5_0_5B = SHAPES["Qwen2.5-0.5B"]


def tokens_per_second(model: Any, device: str, prompt: int, new: int, runs: int) -> list[float]:
    """Tokens a second of greedy generation, one value a run after a warm-up run."""
    x = torch.randint(0, 1000, (1, prompt)).to(device)
    kwargs = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    out = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        model.generate(x, attention_mask=torch.ones_like(x), **kwargs).cpu()
        out.append(new / (time.perf_counter() - start))
    return out[1:]


def main() -> None:
    """Measures and prints; ``--out`` writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--devices", default="webgpu,cuda" if torch.cuda.is_available() else "webgpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(0)
    config = Qwen2Config(**{**QWEN2_5_0_5B, "num_hidden_layers": args.layers})
    model = Qwen2ForCausalLM(config).to(getattr(torch, args.dtype)).eval()
    result: dict[str, Any] = {
        "dtype": args.dtype,
        "layers": args.layers,
        "new_tokens": args.new,
        "torch": torch.__version__,
    }
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    for device in args.devices.split(","):
        if device == "webgpu":
            properties = torch.webgpu.get_device_properties()  # type: ignore[attr-defined]
            result["adapter"], result["implementation"] = properties.name, properties.implementation
        model.to(device)
        if device == "webgpu":
            result["memory_over_weights"] = torch.webgpu.memory_allocated() / weights  # type: ignore[attr-defined]
        with torch.inference_mode():
            speeds = tokens_per_second(model, device, 16, args.new, args.runs)
        result[device] = {"tokens_per_second": speeds, "median": statistics.median(speeds)}
    result["fallbacks"] = torch_webgpu.fallbacks()
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
