"""The JavaScript runtime against CPU PyTorch: in Node, and in headless Chromium and Firefox, on the same bundles."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from models import MissingPackageError, causal, efficientnet_lite0, sample_picture
from torch import Tensor, nn
from typer.testing import CliRunner
from webbing import RUNTIME, Results, in_browser, in_node, missing, node, packed, unpacked

from torch_webgpu.bench import browsers, names
from torch_webgpu.bench.browser import Bench
from torch_webgpu.bench.browser_llm import Model
from torch_webgpu.bench.report.build import write as write_report
from torch_webgpu.bench.results import load
from torch_webgpu.bench.schema import read
from torch_webgpu.cli import app
from torch_webgpu.web import bundle, export, export_llm
from torch_webgpu.web.server import Page, Server
from torch_webgpu.web.serving import files

pytestmark = pytest.mark.once  # kernels run in other programs


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


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    made = Bundles(tmp_path_factory.mktemp("bundles"))
    _add_values(made)
    _add_efficientnet(made)
    _add_language(made)
    return made


_ran: dict[str, Results | BaseException] = {}


@pytest.fixture(params=("node", "chrome", "firefox"))
def results(request: pytest.FixtureRequest, bundles: Bundles) -> Results:
    """What became of all cases in a program that is started once."""
    where = request.param
    if where not in _ran:
        # Loading twice takes a rasteriser's compiler its time, and what goes on after a loss is the same code everywhere.
        cases = {name: case for name, case in bundles.cases.items() if where == "firefox" or name != "llama-lost"}
        (bundles.folder / "cases.json").write_text(json.dumps(cases))
        try:
            _ran[where] = in_node(bundles.folder) if where == "node" else in_browser(where, bundles.folder)
        except BaseException as e:
            _ran[where] = e
    found = _ran[where]
    if isinstance(found, BaseException):
        raise found
    return found


def check(step: dict[str, Any], expected: Any, tolerance: float = 0.0) -> None:
    """A run's outputs against those of PyTorch, in any nesting."""
    assert "value" in step, step
    flat = torch.utils._pytree.tree_leaves(expected)
    assert len(step["value"]) == len(flat)
    for output, want in zip(step["value"].values(), flat, strict=True):
        torch.testing.assert_close(unpacked(output), want.detach(), rtol=tolerance, atol=tolerance)


def error(step: dict[str, Any]) -> tuple[str, str]:
    assert "error" in step, step
    return step["error"], step["message"]


# ----------------------------------------------------------------------------------------------------------- values


def test_values(results: Results) -> None:
    for name, (program, calls, tolerance) in VALUES.items():
        progress, *steps = results[name]
        assert progress["value"]["loaded"] == progress["value"]["total"] > 0
        assert progress["value"]["kernels"] == progress["value"]["allKernels"] > 0
        for step, values in zip(steps, calls, strict=True):
            check(step, program(*values), tolerance)


def test_sizes_choose_the_plan(results: Results) -> None:
    for step, n in zip(results["sized"][1:], SIZES, strict=True):
        check(step, sized(numbers(n, 6)), 1e-5)
    name, message = error(results["sizes"][1])
    assert name == "InputError" and "input x has the shape [5, 6]" in message and "[9, 6]" in message
    check(results["sizes"][2], sized(numbers(4, 6)), 1e-5)  # so many numbers fit one plan alone


def test_state_stays_between_calls(results: Results) -> None:
    _, first, second, together, _, anew = results["counter"]
    model = Counter()
    for step in (first, second, *({"value": v} for v in together["value"])):
        check(step, model(torch.ones(3)))
    check(anew, Counter()(torch.ones(3)))


def test_seeds_draw_what_the_device_draws(results: Results) -> None:
    _, first, second, _, again = results["drawn"]
    torch.webgpu.manual_seed(7)  # type: ignore[attr-defined]
    compiled = torch.compile(drawn, backend="webgpu")
    for step in (first, second):
        check(step, compiled(torch.ones(5, 9, device="webgpu")).cpu(), 1e-6)
    assert again == first != second


def test_efficientnet_top_5(results: Results) -> None:
    model = efficientnet_lite0()
    want = model(small_picture())
    (output,) = results["efficientnet"][1]["value"].values()
    assert unpacked(output).topk(5).indices.tolist() == want.topk(5).indices.tolist()
    torch.testing.assert_close(unpacked(output), want.detach(), rtol=1e-3, atol=1e-3)


def test_a_language_model_continues_as_on_the_cpu(results: Results) -> None:
    _, ended, full, short, most, stopped, again, aborted, reused, *rest = results["llama"]
    after_three, after_all, until_full = continued()
    assert full["value"]["tokens"] == again["value"]["tokens"] == after_all
    assert short["value"]["tokens"] == after_three
    assert most["value"]["tokens"] == until_full and most["value"]["statistics"]["end"] == "full"
    assert stopped["value"]["tokens"] == after_all[:3] and stopped["value"]["statistics"]["end"] == "stopped"
    assert error(aborted)[0] == "AbortError"
    assert reused["value"]["statistics"]["reused"] == 17
    assert full["value"]["statistics"]["promptTokens"] == len(PROMPT) and full["value"]["statistics"]["end"] == "length"
    place = after_all.index(after_all[4])
    assert ended["value"]["tokens"] == after_all[: place + 1] and ended["value"]["statistics"]["end"] == "token"
    drawn = [step["value"]["tokens"] for step in rest[:6]]
    assert drawn[:3] == drawn[3:] and len({tuple(tokens) for tokens in drawn}) == 3
    if "llama-lost" in results:
        assert results["llama-lost"][1]["value"]["tokens"] == drawn[0]


def test_a_browser_that_computes_wrongly_is_found(results: Results) -> None:
    right, late = (step["value"] for step in results["llama-right"][1:])
    wrong = results["llama-wrong"][1]["value"]
    assert right == {"verdict": "right", "at": 5, "of": 5}
    assert late["verdict"] == "slow"
    assert wrong == {"verdict": "wrong", "at": 4, "of": 5}


def test_prompts_that_no_language_model_takes(results: Results) -> None:
    expected = (
        "the prompt is empty", "the prompt holds 199, which is no token of 199", "60 tokens, the cache holds 48",
        "temperature is at least 0", "topK", "no tokenizer",
    )  # fmt: skip
    for step, text in zip(results["llama"][-6:], expected, strict=True):
        assert text in error(step)[1]


# ------------------------------------------------------------------------------------------------------ what goes wrong


def test_an_index_out_of_range_raises(results: Results) -> None:
    _, outside, fine, negative, after = results["outside"]
    model = Embedding()
    assert outside["kind"] == "IndexError" and error(outside)[0] == "KernelError"
    assert "index 10 is out of bounds for dimension with size 10" in error(outside)[1]
    assert f"index {-(1 << 40)} is out of bounds" in error(negative)[1]
    for step in (fine, after):
        check(step, model(torch.tensor([0, 9, 4])), 1e-6)


def test_inputs_that_no_plan_takes(results: Results) -> None:
    _, *wrong, right = results["inputs"]
    expected = (
        "the input ids is missing; taken are ids: int64 [3]", "there is no input y", "has the shape [2]; taken is int64 [3]",
        "input ids is ragged", "input ids is a Float32Array; int64 [3]", "value 0, 1.5, is not", "input ids is string",
        "3 values do not fill the shape [2]",
    )  # fmt: skip
    for step, text in zip(wrong, expected, strict=True):
        name, message = error(step)
        assert name == "InputError" and text in message
    check(right, Embedding()(torch.tensor([0, 9, 4])), 1e-6)


def test_a_lost_device(results: Results) -> None:
    _, before, _, after = results["lost"]
    assert before == after and "value" in after  # loaded again without being asked
    _, first, _, lost, _, anew = results["lost-state"]
    name, message = error(lost)
    assert name == "DeviceLostError" and "the device was lost (destroyed)" in message and "reload() begins anew" in message
    assert anew == first


def test_after_dispose(results: Results) -> None:
    assert error(results["disposed"][2]) == ("DisposedError", "Embedding was disposed of; load it again")
    assert results["thrice"][1] == results["embedding"][1] == results["lost"][1]


FAULTS = {
    "corrupt": ("CorruptFileError", "weights-00001.safetensors is damaged (its SHA-256 is another)"),
    "short": ("CorruptFileError", "weights-00001.safetensors is damaged ("),
    "absent": ("DownloadError", "weights-00001.safetensors"),
    "nowhere": ("DownloadError", "bundle.json"),
    "version": ("VersionError", "the bundle is of version 2, this runtime takes version 1"),
    "other": ("BundleError", "is this the folder of a bundle?"),
    "overfull": ("BundleError", "e.weight"),
    "feature": ("MissingFeatureError", "the feature shader-f99"),
    "large": ("TooLargeError", "maxBufferSize 33554432 MiB, has"),
    "memory": ("TooLargeError", "Embedding takes 3072 MiB of memory, there are 1024 MiB: nothing was downloaded"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_bundle_that_cannot_be_run(case: str, results: Results) -> None:
    (step,) = results[case]
    name, message = error(step)
    assert name == FAULTS[case][0] and FAULTS[case][1] in message


# ---------------------------------------------------------------------------------------- pages, server, measurements


def test_bundles_are_served_with_their_pages(bundles: Bundles, tmp_path: Path) -> None:
    one, both = tmp_path / "one", tmp_path / "both"
    shutil.copytree(bundles.folder / "embedding", one)
    for name in ("llama", "counter"):
        shutil.copytree(bundles.folder / name, both / name)
    _, served = files([one])
    made, listed = files([both])
    assert [m.name for m in made] == ["Counter", "LlamaForCausalLM"]
    with Server() as server:
        page, index = server.add(Page(served)), server.add(Page(listed))

        def get(page: Page, name: str) -> bytes:
            with urlopen(server.address(page) + name) as answer:
                return answer.read()  # type: ignore[no-any-return]

        assert b"pages/model.js" in get(page, "") and b"torch-webgpu-bundle" in get(page, "bundle.json")
        shard = "weights-00001.safetensors"
        assert get(page, shard) == (one / shard).read_bytes()
        kinds = [(m["folder"], m["kind"]) for m in json.loads(get(index, "models.json"))]
        assert kinds == [("counter", "model"), ("llama", "chat")]
        assert b"pages/chat.js" in get(index, "llama/") == get(index, "llama")  # by way of llama/
        assert b"export async function load" in get(index, "counter/runtime/index.js")
        (one / "secret").write_text("not listed")
        for name in ("secret", "../both/llama/bundle.json", "pages/"):
            with pytest.raises(HTTPError, match="404"):
                get(page, name)
    (one / shard).write_bytes(b"")
    for folder, text in ((one, "missing or damaged"), (tmp_path / "none", "torch-webgpu export")):
        result = CliRunner().invoke(app, ["serve", str(folder)])
        assert result.exit_code == 2 and text in " ".join(result.stderr.split())


def test_pictures_are_scaled_as_pillow_does(tmp_path: Path) -> None:
    import numpy as np
    from PIL import Image

    sizes = ((301, 200, 64, 50), (40, 90, 64, 64))  # width, height, shorter side then, cut
    code = [
        'import { readFileSync, writeFileSync } from "node:fs";',
        f'import {{ scaled }} from "{(RUNTIME.parent / "pages" / "picture.js").as_uri()}";',
    ]
    expected = []
    for i, (width, height, resize, size) in enumerate(sizes):
        pixels = np.random.default_rng(i).integers(0, 256, (height, width, 3), np.uint8)
        picture = Image.fromarray(pixels)
        (tmp_path / f"{i}.in").write_bytes(picture.convert("RGBA").tobytes())
        scale = resize / min(width, height)
        picture = picture.resize((round(width * scale), round(height * scale)), Image.Resampling.BICUBIC)
        left, top = (picture.width - size) // 2, (picture.height - size) // 2
        expected.append(np.array(picture.crop((left, top, left + size, top + size))))
        read = f"new Uint8ClampedArray(readFileSync({json.dumps(str(tmp_path / f'{i}.in'))}))"
        made = f"scaled({{ data: {read}, width: {width}, height: {height} }}, {resize}, {size})"
        code.append(f"writeFileSync({json.dumps(str(tmp_path / f'{i}.out'))}, {made});")
    (tmp_path / "run.mjs").write_text("\n".join(code))
    subprocess.run([node(), str(tmp_path / "run.mjs")], check=True, timeout=60)
    for i, want in enumerate(expected):
        got = np.frombuffer((tmp_path / f"{i}.out").read_bytes(), np.uint8).reshape(*want.shape[:2], 4)[..., :3]
        assert np.abs(got.astype(int) - want).max() <= 1  # Pillow's weights are fixed-point numbers


def test_bench_browser_measures_a_bundle(bundles: Bundles, tmp_path: Path) -> None:
    browser = browsers.find("firefox") or missing(browsers.missing("firefox"))
    model = replace(Model.of(bundles.folder / "llama", True), warmups=0)
    with Server() as server:
        bench = Bench(server, model, tmp_path, ["torch-webgpu", "bench", "browser"], 200, lambda text, done: None)
        path, run = bench.headless(browser, browsers.has_gpu())
    assert read(path) == run
    found = {m.metric: m for m in run.measurements}
    assert set(found) == {names.TTFT, names.RATE, names.TOKEN, names.MEMORY}
    assert len(found[names.RATE].samples) == 2 and min(found[names.RATE].samples) > 0
    assert found[names.RATE].parameters == {
        "dtype": "float32", "protocol": "modern", "cache": "static", "new": 8, "prompt": 16
    }  # fmt: skip
    assert found[names.MEMORY].samples == [model.bundle.variants[0].memory]
    written, _ = write_report(load([path]), tmp_path / "report")
    assert "LlamaForCausalLM" in written.read_text()


def test_bundles_that_are_not_measured(bundles: Bundles, tmp_path: Path) -> None:
    for folder, text in ((bundles.folder / "counter", "is no language model"), (tmp_path, "holds no bundle")):
        result = CliRunner().invoke(app, ["bench", "browser", "--llm", str(folder)])
        assert result.exit_code == 2 and text in " ".join(result.stderr.split())


def test_the_runtime_is_small() -> None:
    assert sum(len(p.read_text().splitlines()) for p in RUNTIME.glob("*.js")) <= 1500
