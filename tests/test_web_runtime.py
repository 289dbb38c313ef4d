"""The JavaScript runtime against CPU PyTorch: in Node, and in headless Chromium and Firefox, on the same bundles."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import torch
from models import efficientnet_lite0
from typer.testing import CliRunner
from web_bundles import (
    PROMPT,
    SIZES,
    VALUES,
    Bundles,
    Counter,
    Embedding,
    build,
    continued,
    drawn,
    numbers,
    sized,
    small_picture,
)
from webbing import RUNTIME, Results, in_browser, in_node, linked, missing, node, unpacked

from torch_webgpu.bench import browsers, names
from torch_webgpu.bench.browser import Bench
from torch_webgpu.bench.browser_llm import Model
from torch_webgpu.bench.report.build import write as write_report
from torch_webgpu.bench.results import load
from torch_webgpu.bench.schema import read
from torch_webgpu.cli import app
from torch_webgpu.web.server import Page, Server
from torch_webgpu.web.serving import files

pytestmark = pytest.mark.once  # kernels run in other programs


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    return build(tmp_path_factory.mktemp("bundles"))


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
    named = linked(one / "index.html")
    assert one / "measure/base.css" in named and all(path.is_file() for path in named)
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
        assert all(get(page, path.relative_to(one).as_posix()) == path.read_bytes() for path in named)
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
