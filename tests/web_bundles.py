"""Small programs with their bundles, and what the tests do with each: cases for tests/web/cases.mjs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from models import MissingPackageError, causal, efficientnet_lite0, sample_picture
from torch import Tensor, nn
from webbing import packed

from torch_webgpu.web import bundle, export, export_llm


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def mlp(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 7)).to(dtype).eval()


def small_conv() -> nn.Module:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(3, 5, 3, 2, 1), nn.BatchNorm2d(5), nn.SiLU(), nn.Conv2d(5, 5, 3, groups=5), nn.Flatten())
    statistics = net[1].running_var
    assert isinstance(statistics, Tensor)
    statistics.uniform_(0.5, 1.5)
    return net.eval()


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table, self.linear = nn.Embedding(10, 8), nn.Linear(8, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.linear(self.table(ids))


class Counter(nn.Module):
    """Remembers the sum of all inputs, in place."""

    total: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.total.add_(x)
        self.calls.add_(1)
        return {"total": self.total * 1, "calls": self.calls * 1}


class Nested(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"turned": x.t() + 1, "parts": (x[1:, ::2], x.sum())}


#: Functions of tensors, and arguments in turn for one bundle.
VALUES: dict[str, tuple[Callable[..., Any], tuple[tuple[Tensor, ...], ...], float]] = {
    "pointwise": (
        lambda x, y: ((x * y + 1).relu(), x > y),
        ((numbers(3, 5), numbers(5)), (numbers(3, 5) * 9, -numbers(5))),
        0.0,
    ),
    "linear": (mlp(), ((numbers(3, 24),), (numbers(3, 24) + 1,)), 1e-5),
    "conv": (small_conv(), ((numbers(2, 3, 9, 11),),), 1e-5),
    "embedding": (Embedding().eval(), ((torch.tensor([0, 9, 4]),),), 1e-6),
    "int64": (
        lambda i: (i * 3 + (1 << 40), i.cumsum(0), i // 7),
        ((torch.tensor([5, -(1 << 35), (1 << 33) + 1]),), (torch.tensor([-1, (1 << 62) // 3, 0]),)),
        0.0,
    ),
    "float16": (mlp(torch.float16), ((numbers(3, 24, dtype=torch.float16),),), 4e-3),
    "bfloat16": (lambda x: (x * 3, x + x), ((numbers(3, 5, dtype=torch.bfloat16),),), 0.0),
    "bool": (lambda a, b: (a & ~b, a.sum(), a.any()), ((numbers(3, 7) > 0, numbers(3, 7) > 0.5),), 0.0),
    "bytes": (
        lambda a, b: (a & b, a.to(torch.int64).sum(), a > 9),
        ((torch.arange(13).byte(), torch.arange(13).byte() * 3),),
        0.0,
    ),
    "int32": (lambda a: (a * 7, a % 5), ((torch.tensor([-3, 2**31 - 1, 12], dtype=torch.int32),),), 0.0),
    "nested": (Nested().eval(), ((numbers(4, 6),),), 1e-6),
    "scalar": (lambda x, y: x.amax() * y, ((numbers(300), torch.tensor(2.5)),), 1e-6),
}  # fmt: skip
SIZES = (1, 4, 9)


def sized(x: Tensor) -> Tensor:
    return torch.softmax(x @ x.t(), 1)


def drawn(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5) + torch.rand_like(x)


@dataclass
class Bundles:
    """Bundles and what to do with them, in one folder."""

    folder: Path
    cases: dict[str, Any] = field(default_factory=dict)

    def case(self, name: str, bundle: str, *steps: dict[str, Any], **options: Any) -> None:
        self.cases[name] = {"bundle": bundle, "steps": list(steps), "options": options}

    def variation(self, source: str, name: str, document: dict[str, Any]) -> None:
        """A copy of a bundle with another bundle.json."""
        shutil.copytree(self.folder / source, self.folder / name)
        (self.folder / name / bundle.MANIFEST).write_text(json.dumps(document))

    def spoilt(self, name: str, change: Callable[[dict[str, Any]], None]) -> Path:
        """A copy of the embedding's bundle with another bundle.json."""
        document = json.loads((self.folder / "embedding" / bundle.MANIFEST).read_text())
        self.variation("embedding", name, document)
        change(document)
        (self.folder / name / bundle.MANIFEST).write_text(json.dumps(document))
        return self.folder / name


def named(made: bundle.Bundle, folder: Path, values: tuple[Tensor, ...]) -> dict[str, Any]:
    plans = json.loads((folder / made.variants[-1].plans).read_text())["plans"]["run"]
    return {t["name"]: packed(v) for t, v in zip(plans["inputs"], values, strict=True)}


def _add_values(bundles: Bundles) -> None:
    for name, (program, calls, _) in VALUES.items():
        made = export(program, calls[0], bundles.folder / name)
        bundles.case(name, name, *({"run": named(made, bundles.folder / name, values)} for values in calls))
    export(sized, {"x": numbers(4, 6)}, bundles.folder / "sized", dynamic={"x": {0: SIZES}})
    bundles.case("sized", "sized", *({"run": {"x": packed(numbers(n, 6))}} for n in SIZES))
    ids = {"ids": packed(torch.tensor([0, 9, 4]))}
    export(Counter().eval(), {"x": numbers(3)}, bundles.folder / "counter")
    ones = {"x": packed(torch.ones(3))}
    bundles.case(
        "counter", "counter", {"run": ones}, {"run": ones}, {"together": [ones, ones]}, {"reload": 0}, {"run": ones}
    )
    export(drawn, {"x": torch.ones(5, 9)}, bundles.folder / "drawn")
    x = {"x": packed(torch.ones(5, 9))}
    bundles.case("drawn", "drawn", {"run": x}, {"run": x}, {"seed": 7}, {"run": x}, seed=7)
    bundles.case("thrice", "embedding", {"run": ids})
    _add_faults(bundles, ids, ones)


Change = Callable[[dict[str, Any]], None]


def of_all(change: Change) -> Change:
    """Changes every variant of a bundle."""

    def changed(document: dict[str, Any]) -> None:
        for variant in document["variants"]:
            change(variant)

    return changed


PROMPT = [3, 17, 101, 5, 42, 8, 150, 77, 60, 2, 9, 33, 198, 4, 11, 121, 64, 7, 88, 19]
NEW = 24


def _add_language(bundles: Bundles) -> None:
    """A small random Llama: prompts of one and of several pieces, of all ways to end and to choose."""
    export_llm(causal("llama-4-4"), bundles.folder / "llama", context=48, prompts=(8,), variants=((),), rasteriser=True)
    greedy = {"temperature": 0, "ends": []}
    full = {"prompt": PROMPT, "maxNewTokens": NEW, **greedy}
    drawn = [
        {"temperature": 0.8, "seed": 5},
        {"temperature": 1.5, "topK": 20, "seed": 5},
        {"temperature": 1, "topP": 0.6, "seed": 5},
    ]
    drawings = [{"prompt": PROMPT[:3], "maxNewTokens": 12, "ends": [], **each} for each in drawn]
    steps: list[dict[str, Any]] = [
        full, {**full, "prompt": PROMPT[:3]}, {**full, "maxNewTokens": 100}, {**full, "stopAfter": 3}, full,
        {**full, "abortAfter": 2}, {**full, "prompt": PROMPT[:18], "reuse": True}, *drawings, *drawings,
        {"prompt": []}, {"prompt": [199]}, {"prompt": PROMPT * 3},
        {"prompt": PROMPT, "temperature": -1}, {"prompt": PROMPT, "temperature": 1, "topK": 0},
        {"prompt": "text"},
    ]  # fmt: skip
    ended = {"prompt": PROMPT, "temperature": 0, "ends": continued()[1][4:5]}
    bundles.case("llama", "llama", *({"generate": step} for step in (ended, *steps)))
    manifest = bundles.folder / "llama" / bundle.MANIFEST
    document = json.loads(manifest.read_text())
    for name, tokens in (("right", continued()[1][:5]), ("wrong", [*continued()[1][:3], 198, 0])):
        document["language"]["check"] = {"prompt": PROMPT, "tokens": tokens}
        bundles.variation("llama", f"llama-{name}", document)
        bundles.case(f"llama-{name}", f"llama-{name}", {"check": 400_000}, {"check": 0})
    bundles.case("llama-lost", "llama", {"generate": {**drawings[0], "destroyAfter": 4}})


@cache
def continued() -> tuple[list[int], list[int], list[int]]:
    """What the small model says on the CPU after three tokens, after the prompt, and until its cache is full."""
    model = causal("llama-4-4")

    def after(prompt: list[int], new: int) -> list[int]:
        out = model.generate(torch.tensor([prompt]), max_new_tokens=new, do_sample=False)
        return out[0, len(prompt) :].tolist()  # type: ignore[no-any-return]

    return after(PROMPT[:3], NEW), after(PROMPT, NEW), after(PROMPT, 48 - len(PROMPT) + 1)


def _add_faults(bundles: Bundles, ids: dict[str, Any], ones: dict[str, Any]) -> None:
    outside = {"ids": packed(torch.tensor([1, 10, 2]))}
    negative = {"ids": packed(torch.tensor([1, 2, -(1 << 40)]))}
    bundles.case("outside", "embedding", {"run": outside}, {"run": ids}, {"run": negative}, {"run": ids})
    bundles.case("lost", "embedding", {"run": ids}, {"destroy": 0}, {"run": ids})
    bundles.case("lost-state", "counter", {"run": ones}, {"destroy": 0}, {"run": ones}, {"reload": 0}, {"run": ones})
    bundles.case("disposed", "embedding", {"dispose": 0}, {"run": ids})
    wrong: list[dict[str, Any]] = [
        {}, {"ids": ids["ids"], "y": {"raw": 1}}, {"ids": {"raw": [1, 2]}}, {"ids": {"raw": [[1, 2], [3]]}},
        {"ids": packed(numbers(3), shaped=False)}, {"ids": {"raw": [1.5, 2, 3]}}, {"ids": {"raw": "one"}},
        {"ids": {"raw": {"data": [1, 2, 3], "shape": [2]}}},
    ]  # fmt: skip
    bundles.case("inputs", "embedding", *({"run": each} for each in wrong), {"run": {"ids": {"raw": [0, 9, 4]}}})
    bundles.case(
        "sizes", "sized", {"run": {"x": packed(numbers(5, 6))}}, {"run": {"x": packed(numbers(4, 6), shaped=False)}}
    )

    def corrupt(change: Callable[[bytearray], None], file: str) -> Callable[[dict[str, Any]], None]:
        def changed(document: dict[str, Any]) -> None:
            path = bundles.folder / "corrupt" / file
            content = bytearray(path.read_bytes())
            change(content)
            path.write_bytes(content)

        return changed

    shard = "weights-00001.safetensors"
    bundles.spoilt("corrupt", corrupt(lambda c: c.__setitem__(-5, c[-5] ^ 1), shard))
    bundles.case("corrupt", "corrupt")
    short = bundles.spoilt("short", lambda d: None)
    (short / shard).write_bytes((short / shard).read_bytes()[:-4])
    bundles.case("short", "short")
    absent = bundles.spoilt("absent", lambda d: None)
    (absent / shard).unlink()
    bundles.case("absent", "absent")
    bundles.case("nowhere", "nowhere")
    bundles.spoilt("version", lambda d: d.update(version=2))
    bundles.case("version", "version")
    bundles.spoilt("other", lambda d: d.update(format="something"))
    bundles.case("other", "other")
    bundles.spoilt("overfull", lambda d: d["buffers"][0]["data"][0].update(at=1 << 20))
    bundles.case("overfull", "overfull")
    bundles.spoilt("feature", of_all(lambda v: v.update(features=["shader-f99"])))
    bundles.case("feature", "feature")
    bundles.spoilt("large", of_all(lambda v: v["limits"].update(maxBufferSize=1 << 45)))
    bundles.case("large", "large")
    bundles.spoilt("memory", of_all(lambda v: v.update(memory=3 << 30)))
    bundles.case("memory", "memory", memory=1 << 30)


def small_picture() -> Tensor:
    """Small, as browsers may compute on the processor here."""
    return F.interpolate(sample_picture(), size=96, mode="bilinear")


def _add_efficientnet(bundles: Bundles) -> None:
    try:
        model = efficientnet_lite0()
    except MissingPackageError:
        return
    export(model, {"x": small_picture()}, bundles.folder / "efficientnet")
    bundles.case("efficientnet", "efficientnet", {"run": {"x": packed(small_picture())}})


def build(folder: Path) -> Bundles:
    """All bundles, with their cases."""
    made = Bundles(folder)
    _add_values(made)
    _add_efficientnet(made)
    _add_language(made)
    return made
