"""Decoding of SmolLM2-135M in one run: transformers' loop op by op, and the compiled step; their ratio."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from torch_webgpu.llm import Generator, load

PROMPT = "The capital of France is"


def rate(tokens: Iterator[Any]) -> float:
    """Tokens a second after the first one."""
    next(tokens)
    start, count = time.perf_counter(), sum(1 for _ in tokens)
    return count / (time.perf_counter() - start)


class Arrivals:
    """A streamer that notes when tokens come."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        """The prompt, then a token at a time."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """The protocol's last call."""


def eager(model: Any, ids: torch.Tensor, count: int) -> float:
    """Tokens a second of ``model.generate``."""
    arrivals = Arrivals()
    model.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0, streamer=arrivals)
    times = arrivals.times[1:]  # the first is the prompt's
    return (len(times) - 1) / (times[-1] - times[0])


def main() -> None:
    """Measures in turn, so that a change of the machine's load meets both; prints; ``--out`` writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantize", choices=("int8", "int4", "gguf"))
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    model, tokenizer = load(None, getattr(torch, args.dtype), quantize=args.quantize)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids.to("webgpu")
    generator = Generator(model, 256, compile_prompts=False)
    start = time.perf_counter()
    generator.compile(ids)
    compile_s = time.perf_counter() - start
    methods: dict[str, Callable[[], float]] = {
        "eager": lambda: eager(model, ids, args.tokens),
        "compiled": lambda: rate(generator.stream(ids, args.tokens, eos=())),
    }
    found: dict[str, list[float]] = {name: [] for name in methods}
    for i in range(args.runs + 1):
        for name, method in methods.items():
            speed = method()
            if i:  # the first run prepares
                found[name].append(speed)
    medians = {name: statistics.median(speeds) for name, speeds in found.items()}
    properties = torch.get_device_module("webgpu").get_device_properties()
    result = {
        "adapter": properties.name,
        "implementation": properties.implementation,
        "torch": torch.__version__,
        "dtype": args.dtype,
        "quantize": args.quantize,
        "tokens_per_second": found,
        "medians": medians,
        "compiled_over_eager": medians["compiled"] / medians["eager"],
        "compile_s": compile_s,
    }
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
