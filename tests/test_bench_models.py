"""Benchmarks of parts and whole models: every variant is right before it is timed, and each dispatch is counted."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from torch_webgpu import llm
from torch_webgpu.bench import cells, fusion, fusion_cases, handwritten, llm_job, models, vision, vision_models
from torch_webgpu.bench.llm import Settings, finished, jobs
from torch_webgpu.bench.names import DISPATCHES, MEMORY, RATE, SUBMITS, TOKEN, TTFT, WALL
from torch_webgpu.bench.onnx_engine import OnnxEngine, UnavailableError, check_provider
from torch_webgpu.bench.recorder import Recorder
from torch_webgpu.bench.sampling import Budget
from torch_webgpu.bench.schema import Measurement, Quantity, Target
from torch_webgpu.cli import app
from torch_webgpu.errors import LimitError
from torch_webgpu.runtime import device

pytestmark = pytest.mark.once  # every command checks its results itself, on each implementation, before it times them

TINY = Settings(models=("tiny",), implementations=("wgpu",), new=4, warmup=1, runs=3, contexts=(20,))


class Kept:
    """A sink that keeps all in lists."""

    quick = True

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self.found: list[Measurement] = []
        self.notes: list[str] = []

    def target(self, target: Target) -> int:
        self.targets.append(target)
        return len(self.targets) - 1

    def has(self, quantity: Quantity) -> bool:
        return quantity.key in [m.key for m in self.found]

    def add(self, measurement: Measurement) -> None:
        assert not self.has(measurement)
        self.found.append(measurement)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, text: str, done: float = 0, total: float = 1) -> None: ...

    def of(self, metric: str, **parameters: Any) -> dict[str, list[float]]:
        """Samples by method."""
        return {
            m.method: m.samples
            for m in self.found
            if m.metric == metric and all(m.parameters.get(k) == v for k, v in parameters.items())
        }


# ---------------------------------------------------------------------------------------------------- fusion

# computation: dispatches of the eager function, of its levels of fusion, and of the hand-written ways
COUNTS: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {
    "rms_norm": (6, (6, 3, 1), (6, 1)),
    "mlp": (7, (7, 5, 2), (7, 3, 2)),
    "rms_norm and mlp": (13, (13, 8, 2), (13, 3, 1)),
    "matmul and silu": (2, (2, 2, 1), (2, 1)),
    "k and v": (3, (3, 3, 2), (2, 1)),
    "matmul": (1, (), (1, 1)),
    "softmax": (1, (), (1, 1)),
    "argmax": (1, (), ()),
}
QUICK = {case.title: case for make in fusion_cases.cases(True, True) for case in [make()]}


@pytest.mark.parametrize("title", QUICK)
def test_every_variant_is_right_and_counted(title: str) -> None:
    case, kept = QUICK[title], Kept()
    fusion.FusionBench(kept, 3, Budget(1, 2)).run(case, 0)
    eager, levels, by_hand = COUNTS[case.name]
    counts = kept.of(DISPATCHES)
    assert counts["eager"] == [eager]
    assert [counts[f"compiled, {level}"] for level in fusion.LEVELS if case.levels] == [[n] for n in levels]
    assert [n for name, n in counts.items() if name.startswith("by hand")] == [[n] for n in by_hand]
    assert not kept.notes
    times = kept.of(WALL, calls=1, submits=fusion.TOGETHER)
    assert times.keys() == counts.keys() and all(len(t) == 2 and min(t) > 0 for t in times.values())
    if case.returns_index:
        return
    assert all(n == [1] for n in kept.of(SUBMITS).values())
    apart = kept.of(WALL, calls=1, submits=fusion.APART)  # a plan's dispatches go together
    assert apart.keys() == {name for name in counts if not name.startswith(("compiled", "torch.compile"))}
    assert kept.of(WALL, calls=3, submits=fusion.TOGETHER).keys() == counts.keys()
    before = len(kept.found)
    fusion.FusionBench(kept, 3, Budget(1, 2)).run(case, 0)  # an interrupted run that goes on measures nothing twice
    assert len(kept.found) == before


def test_a_dispatch_a_submit() -> None:
    chain = handwritten.rms_norm_steps(64)
    x, w = torch.randn(1, 64, device="webgpu"), torch.ones(64, device="webgpu")
    chain(x=x, w=w)
    with fusion.submit_interval(1):
        assert fusion.counted(lambda: chain(x=x, w=w)) == (6, 6)
    assert fusion.counted(lambda: chain(x=x, w=w)) == (6, 1)


def test_the_whole_row_is_summed() -> None:
    """What lies beyond one workgroup's width counts."""
    x = torch.zeros(1, 896)
    x[0, 700] = 30.0
    for chain in (handwritten.rms_norm_steps(896), handwritten.rms_norm(896)):
        got = chain(x=x.to("webgpu"), w=torch.ones(896, device="webgpu"))
        torch.testing.assert_close(got.cpu(), fusion_cases.rms(x, torch.ones(896)))


def test_odd_sizes_by_hand() -> None:
    a, b = torch.randn(3, 19), torch.randn(19, 35)
    for chain in (handwritten.matmul_naive(3, 35, 19), handwritten.matmul_tiled(3, 35, 19)):
        torch.testing.assert_close(chain(a=a.to("webgpu"), b=b.to("webgpu")).cpu(), a @ b)
    x = 30 * torch.randn(67, 5)
    for chain in (handwritten.softmax_naive(67, 5), handwritten.softmax_parallel(67, 5)):
        torch.testing.assert_close(chain(x=x.to("webgpu")).cpu(), x.softmax(-1))
    with pytest.raises(KeyError, match="x"):
        handwritten.rms_norm(8)(w=torch.ones(8, device="webgpu"))


def test_what_computes_something_else_is_not_timed() -> None:
    case = fusion_cases.rms_norm_case(64)
    kernel = handwritten.elementwise("wrong", "ld_x(i) * 1.01 * ld_w(i)", ["x", "w"], "o", 64)
    wrong = replace(case, chains={"by hand, wrong": lambda: handwritten.Chain([kernel], {}, [1, 64])})
    kept = Kept()
    with pytest.raises(fusion_cases.WrongResultError, match=r"rms_norm \(width 64\), by hand, wrong: differs"):
        fusion.FusionBench(kept, 2, Budget(0, 2)).run(wrong, 0)
    assert not kept.of(WALL)
    nan = torch.full((1, 64), float("nan"), device="webgpu")
    with pytest.raises(fusion_cases.WrongResultError):
        fusion.check(case, "nan", nan, case.expected())


def test_what_the_device_cannot_hold_is_noted() -> None:
    most = device().limits["maxComputeWorkgroupStorageSize"]
    case = fusion_cases.block_case(64, most // 4)
    with pytest.raises(LimitError, match=f"{most} granted"):
        case.chains["by hand, mega-kernel"]()
    told: list[tuple[str, str]] = []
    found = fusion.variants(replace(case, levels=False, eager=False), lambda *what: told.append(what))
    assert [name for name, _ in told] == ["by hand, mega-kernel"] and "by hand, 3" in [v.name for v in found]


def test_variants_take_turns() -> None:
    calls: list[str] = []

    def variant(name: str) -> dict[str, float]:
        calls.append(name)
        return {WALL: float(len(calls))}

    names, kept = ("a", "b", "c"), Kept()
    made = [cells.Cell("turns", name, {}, (WALL,), partial(variant, name)) for name in names]
    cells.measure(kept, "fusion", 0, made, "turns", Budget(2, 20))
    rounds = [tuple(calls[i : i + 3]) for i in range(0, len(calls), 3)]
    assert all(sorted(r) == list(names) for r in rounds) and len(set(rounds)) > 3
    assert all(len(m.warmup) == 2 and len(m.samples) == 20 for m in kept.found) and len(kept.found) == 3
    assert sorted(v for m in kept.found for v in m.warmup) == [1, 2, 3, 4, 5, 6]


# ---------------------------------------------------------------------------------------------------- language models


def test_the_papers_protocol_and_what_else_is_measured() -> None:
    found = list(jobs(Settings(models=("Qwen2.5-0.5B",), protocols=("paper",))))
    assert all((j.dtype, j.new, j.warmup, j.runs, j.contexts) == ("float32", 50, 5, 30, ()) for j in found)
    ways = {(j.implementation or j.device, j.method, j.fusion, j.cache) for j in found}
    for name in ("wgpu", "dawn"):
        assert {(name, "eager", "", "none"), (name, "eager", "", "dynamic"), (name, "compiled", "none", "none")} <= ways
    assert {("cuda", "reduce-overhead", "", "static"), ("webgpu", "onnxruntime", "", "dynamic")} <= ways
    modern = list(jobs(replace(TINY, protocols=("modern",), places=("webgpu",))))
    assert {j.quantize or j.dtype for j in modern} == {"float32", "float16", "int8", "int4"}
    assert all(j.device == "webgpu" and j.method != "onnxruntime" for j in modern)
    assert len({j.title for j in found}) == len(found)
    assert {case.name for case in QUICK.values()} == set(fusion_cases.NAMES) == set(COUNTS)


@pytest.mark.parametrize("method", ["compiled", "eager"])
def test_a_model_by_the_papers_protocol(method: str) -> None:
    implementation = device().adapter.implementation
    wanted = replace(TINY, implementations=(implementation,), levels=("full",), protocols=("paper",))
    job = next(j for j in jobs(wanted) if j.method == method and j.device == "webgpu")
    kept = Kept()
    llm_job.measure(job.request, kept)
    assert not kept.notes and kept.targets[0].implementation == implementation
    rates, first = kept.of(RATE, prompt=5, protocol="paper"), kept.of(TTFT, prompt=5)
    assert len(rates[method]) == len(first[method]) == 3 and kept.of(MEMORY)[method][0] > 0
    (rate,) = (m for m in kept.found if m.metric == RATE)
    assert len(rate.warmup) == 1 and rate.parameters["weights"] == "random" and "random weights" in rate.notes
    assert any("4 of 4 greedy tokens equal" in note for note in rate.notes)


@pytest.mark.parametrize(("quantize", "method"), [("", "generator"), ("int8", "eager")])
def test_prefill_and_decode_apart(quantize: str, method: str) -> None:
    implementation = device().adapter.implementation
    dtypes = (quantize or "float32",)
    wanted = replace(TINY, implementations=(implementation,), levels=("full",), protocols=("modern",), dtypes=dtypes)
    job = next(j for j in jobs(wanted) if j.method == method and j.device == "webgpu")
    kept = Kept()
    llm_job.measure(job.request, kept)
    assert not kept.notes
    assert len(kept.of(RATE, prompt=20)[method]) == len(kept.of(TTFT, prompt=20)[method]) == 3
    for rate, each in zip(kept.of(RATE)[method], kept.of(TOKEN)[method], strict=True):
        assert rate * each == pytest.approx(1000)
    assert kept.of(DISPATCHES)[method] == ([21] if method == "generator" else [108])
    assert kept.of(MEMORY)[method][0] > 0


def test_a_run_goes_on_with_the_jobs_it_lacks(tmp_path: Path) -> None:
    wanted = replace(TINY, places=("cpu",), protocols=("modern",), dtypes=("float32",), contexts=(8, 20))
    eager, compiled = jobs(wanted)
    recorder = Recorder(tmp_path / "llm.json", ["llm"])
    target = recorder.target(Target(kind="cpu", implementation="torch", adapter="some CPU", adapter_kind="cpu"))
    for prompt in (8, 20):
        assert not finished(eager, recorder.run)
        about: dict[str, Any] = {"experiment": "llm", "workload": "tiny", "method": "eager", "metric": RATE}
        about |= {"target": target, "parameters": {**eager.parameters, "prompt": prompt, "weights": "random"}}
        recorder.add(Measurement(**about, unit="tokens/s", samples=[1.0, 2.0]))
    assert finished(eager, recorder.run) and not finished(compiled, recorder.run)
    assert not finished(replace(eager, layers=1), recorder.run) and not finished(replace(eager, new=9), recorder.run)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model and its tokenizer as Hugging Face keeps them."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    letters = {letter: i for i, letter in enumerate(sorted(ByteLevel.alphabet()))}
    words = Tokenizer(BPE(letters, []))
    words.pre_tokenizer = ByteLevel(add_prefix_space=False)
    Qwen2Tokenizer(tokenizer_object=words).save_pretrained(tmp_path / "model")
    models.load_model("tiny", None, "float32", None).model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_tokens_of_real_weights_are_the_cpus(folder: Path) -> None:
    loaded = models.load_model("model", str(folder), "float32", 1)
    assert loaded.real and len(loaded.prompt) == len(models.PROMPT)
    assert loaded.note == f"weights of {folder}, the first 1 of 2 layers alone"
    job = next(jobs(replace(TINY, models=("model",), path=str(folder), protocols=("paper",), new=6)))
    measured = llm_job.Measured(job, loaded, Kept(), 0)
    expected, _ = measured.reference()
    with torch.no_grad():
        out = loaded.model.generate(torch.tensor([loaded.prompt]), max_new_tokens=6, min_new_tokens=6, do_sample=False)
    assert out[0, len(models.PROMPT) :].tolist() == expected
    measured.check(expected, expected)
    with pytest.raises(llm_job.UnsuitableError, match="wrong tokens: 5 of the first 6"):
        measured.check([*expected[:5], expected[5] + 1], expected)
    halves = llm_job.Measured(replace(job, dtype="float16"), loaded, Kept(), 0)
    halves.check([*expected[:5], expected[5] + 1], expected)
    assert halves.notes[-1] == "5 of 6 greedy tokens equal to the CPU's in float32"
    assert models.positions_of("model", str(folder)) == 512


def test_what_does_not_fit_is_told() -> None:
    with pytest.raises(llm.ModelError, match=r"tiny: a context of 600 .* 512 positions; --contexts may go up to 507"):
        replace(TINY, contexts=(600,)).check()
    with pytest.raises(llm.ModelError, match="There is no model in '/no/model'"):
        replace(TINY, models=("model",), path="/no/model").check()
    with pytest.raises(llm.ModelError, match="5 layers: the model has 2"):
        models.load_model("tiny", None, "float32", 5)
    kept = Kept()
    job = next(j for j in jobs(replace(TINY, contexts=(600,), protocols=("modern",))) if j.device == "cpu")
    llm_job.measure(job.request, kept)
    assert len(kept.notes) == 1 and "a context of 600 and 4 new tokens: the model has 512 positions" in kept.notes[0]


def test_missing_onnx_runtime_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UnavailableError, match="pip install onnxruntime-webgpu"):
        check_provider("webgpu")


def test_onnx_runtime_generates_the_same_tokens() -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is a peer to compare with: pip install onnxruntime onnxscript")
    pytest.importorskip("onnxscript", reason="exporting to ONNX needs it: pip install onnxscript")
    from torch_webgpu.bench.engines import TorchEngine, greedy

    loaded = models.load_model("tiny", None, "float32", None)
    ids = torch.tensor([loaded.prompt])
    engine, torch_engine = OnnxEngine(loaded.model, "cpu"), TorchEngine(loaded.model, "cpu", 0)
    torch.testing.assert_close(engine.logits(ids), torch_engine.logits(ids), rtol=1e-4, atol=1e-4)
    assert greedy(engine, ids, 8) == greedy(torch_engine, ids, 8)
    assert not engine.notes


# ---------------------------------------------------------------------------------------------------- vision


@pytest.mark.parametrize("method", ["eager", "compiled"])
@pytest.mark.parametrize("model", vision_models.MODELS)
def test_a_vision_model(model: str, method: str) -> None:
    implementation = device().adapter.implementation
    fusion_level = "full" if method == "compiled" else ""
    job = vision.VisionJob(model, "webgpu", method, implementation, fusion_level, small=True, warmup=1, runs=2)
    torch._dynamo.reset()
    kept = Kept()
    vision.measure(job.request, kept)
    assert not kept.notes and len(kept.of(WALL)[method]) == 2
    assert kept.of(DISPATCHES)[method][0] > 20 and kept.of(MEMORY)[method][0] > 0
    assert all(m.parameters["small"] is True for m in kept.found)


def test_a_wrong_output_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vision.TOLERANCE, "float32", 1e-12)
    kept = Kept()
    vision.measure(vision.VisionJob("UNet", "webgpu", "eager", small=True).request, kept)
    assert not kept.found and "UNet: webgpu, eager, float32: wrong output" in kept.notes[0]


# ---------------------------------------------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    (
        (["llm", "--models", "GPT-7"], "--models: 'GPT-7' is not one of Qwen2.5-0.5B"),
        (["llm", "--contexts", "12,x"], "--contexts: '12,x' is no list of numbers of tokens"),
        (["llm", "--models", "tiny", "--contexts", "600"], "do not fit its 512 positions"),
        (["llm", "--model", "/no/model"], "There is no model in '/no/model'"),
        (["vision", "--on", "abacus"], "--on: 'abacus' is not one of webgpu, cpu, cuda, mps"),
        (["fusion", "--impl", ""], "--impl: nothing is chosen"),
        (["fusion", "--only", "nothing like it"], "no computation has 'nothing like it' in its name"),
    ),
)
def test_bad_input_is_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", *arguments, "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert message in result.output.replace("\n", " ") and "Traceback" not in result.output


def test_a_run_of_the_command(tmp_path: Path) -> None:
    name = device().adapter.implementation
    command = ["bench", "fusion", "--quick", "--impl", name, "--only", "softmax", "--out", str(tmp_path), "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    rows = {(row["method"], row["metric"]) for row in told["rows"]}
    assert {("by hand, naive", "wall"), ("by hand, parallel", "wall"), ("eager", "dispatches")} <= rows
    assert Path(told["file"]).is_file()
