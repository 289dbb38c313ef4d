"""``torch_webgpu.compiler.explain``: it tells exactly what is replayed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from models import causal
from torch import nn
from typer.testing import CliRunner

from torch_webgpu import _C, runtime
from torch_webgpu.compiler import Explanation, explain
from torch_webgpu.compiler.backend import LEVELS
from torch_webgpu.compiler.executor import recorded
from torch_webgpu.compiler.explanation_table import rows, where
from torch_webgpu.compiler.memory import Lifetime, peak


class Layer(nn.Module):
    """A gated network with a norm and a residual: what a transformer's layer has beside attention."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up, self.gate, self.down = nn.Linear(width, inner), nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(n)) * self.up(n))


class Stack(nn.Module):
    """A few layers and a head."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(32, 48) for _ in range(layers))
        self.head = nn.Linear(32, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x).softmax(-1)


@pytest.fixture(scope="module")
def explained() -> tuple[Stack, Explanation]:
    torch.manual_seed(0)
    model = Stack().to("webgpu")
    with torch.no_grad():
        return model, explain(model, torch.randn(1, 32, device="webgpu"))


@pytest.mark.parametrize("level", LEVELS)
def test_dispatches_are_those_that_are_encoded(level: str) -> None:
    model = Stack().to("webgpu")
    x = torch.randn(1, 32, device="webgpu")
    with torch.no_grad():
        found = explain(model, x, fusion=level)
        compiled = torch.compile(model, backend="webgpu", options={"fusion": level})
        compiled(x)
        _C.drain()
        before = _C.stats()["encoded"]
        compiled(x)
        _C.drain()
    assert found.dispatches == _C.stats()["encoded"] - before
    assert found.dispatches == sum(p.encoded for p in found.plans) == found.levels[level]
    assert found.fusion == level


def test_levels_and_captured_calls(explained: tuple[Stack, Explanation]) -> None:
    _, found = explained
    counts = [found.levels[level] for level in LEVELS]
    assert all(n is not None for n in counts)
    assert counts == sorted(counts, key=lambda n: -(n or 0)) and len(set(counts)) == 3
    assert found.captured == 3 * 7 + 2  # norm, three linears, silu, product, sum; head and softmax
    assert found.aten > found.captured


def test_model_is_run_once() -> None:
    class Counter(nn.Module):
        count: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x * self.count

    model = Counter().to("webgpu")
    with torch.no_grad():
        explain(model, torch.ones(3, device="webgpu"))
    assert model.count.item() == 1


def test_modules_and_folding(explained: tuple[Stack, Explanation]) -> None:
    _, found = explained
    (plan,) = found.plans
    for i in range(3):
        assert any(d.modules and all(m.startswith(f"layers.{i}") for m in d.modules) for d in plan.plan.dispatches)
    assert {f"layers.1.{name}" for name in ("norm", "up", "gate", "down")} <= {
        m for d in plan.plan.dispatches for m in d.modules
    }
    every, folded = list(rows(plan, False)), list(rows(plan, True))
    assert len(every) == found.dispatches == sum(len(r.places) for r in folded)
    assert sorted(p for r in folded for p in r.places) == list(range(found.dispatches))
    assert len(folded) < len(every)
    assert any(len(r.places) == 3 and r.module.startswith("layers.0–2") for r in folded), str(found)
    text = str(found)
    assert "layers.0–2" in text and f"{found.dispatches} dispatches" in text and "no graph breaks" in text
    found.fold = False
    assert "layers.1.down" in str(found) and "0–2" not in str(found)
    found.fold = True


def test_bytes_and_weights(explained: tuple[Stack, Explanation]) -> None:
    model, found = explained
    assert found.weights == sum(p.nbytes for p in model.parameters())
    totals = found.to_dict()["totals"]
    # every weight is read once, and what is written is read again, but for the result
    assert totals["read"] >= found.weights + 32 * 4 and totals["read"] < 2 * found.weights
    plan = found.plans[0].plan
    head = next(d for d in plan.dispatches if d.modules == ("head",) and d.kernel == "matvec")
    assert head.read == (20 * 32 + 20 + 32) * 4 and head.written == 20 * 4
    assert [found.plans[0].label(b) for b in head.bindings if not b.written and b.ref < 1 << 20] == [
        "head.weight",
        "head.bias",
    ]
    assert plan.peak <= sum(plan.arenas) and plan.peak <= plan.temporaries


def test_peak_of_lifetimes() -> None:
    assert peak([Lifetime("a", 10, 0, 1), Lifetime("b", 20, 1, 2), Lifetime("c", 5, 3, 4)]) == 30
    assert peak([]) == 0


def test_graph_breaks() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y.softmax(-1)

    with torch.no_grad():
        found = explain(broken, torch.randn(2, 3, device="webgpu"))
    assert len(found.plans) == 2
    assert len(found.breaks) == 1 and "graph_break()" in found.breaks[0] and "test_explain.py" in found.breaks[0]
    assert "graph break:" in str(found)


def test_ops_outside_of_the_plan_are_named() -> None:
    def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return torch.ops.aten.index_put(y, [mask], y.sum()) * 3

    x, mask = torch.arange(6.0), torch.tensor([True, False, True, False, False, True])
    with torch.no_grad():
        found = explain(masked, x.to("webgpu"), mask.to("webgpu"))
    assert [reason for _, reason in found.op_by_op] == ["aten.index_put.default: needs the host"]
    assert len(found.plans) == 2  # before and after
    assert sum(p.encoded for p in found.plans) == found.dispatches
    assert found.levels == dict.fromkeys(LEVELS)
    assert "op by op:" in str(found)


def test_nothing_to_explain() -> None:
    with pytest.raises(RuntimeError, match="saw no graph"):
        explain(lambda x: x, torch.ones(2, device="webgpu"))


def test_unknown_level_and_option() -> None:
    with pytest.raises(ValueError, match="fusion='most'"):
        explain(torch.sin, torch.ones(2, device="webgpu"), fusion="most")
    with pytest.raises(Exception, match="no options \\['speed'\\]"):
        torch.compile(lambda x: x + 1, backend="webgpu", options={"speed": 1})(torch.ones(2, device="webgpu"))


def test_json_and_shaders(explained: tuple[Stack, Explanation], tmp_path: Path) -> None:
    _, found = explained
    facts = json.loads(json.dumps(found.to_dict()))
    assert facts["totals"]["dispatches"] == found.dispatches == len(facts["plans"][0]["dispatches"])
    row = facts["plans"][0]["dispatches"][0]
    assert {"index", "name", "kernel", "groups", "read", "written", "modules", "bindings"} <= row.keys()
    files = found.write_wgsl(tmp_path / "new" / "folder")
    assert len(files) == len(found.pipelines) == facts["totals"]["pipelines"]
    for file, pipeline in zip(files, found.pipelines, strict=True):
        code = file.read_text()
        assert code.startswith("// ") and code.endswith(runtime.shader_of(pipeline).code) and "fn main" in code


def test_drawing(explained: tuple[Stack, Explanation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = explained
    (dot,) = found.write_graph(tmp_path / "plan.dot")
    text = dot.read_text()
    assert text.startswith("digraph") and text.count("{") == text.count("}")
    boxes = set(re.findall(r"(p0_\d+) \[label", text))
    assert len(boxes) == found.dispatches
    edges = re.findall(r"(p0_\w+) -> (p0_\w+)", text)
    assert all(int(a[3:]) < int(b[3:]) for a, b in edges if a in boxes and b in boxes)
    assert boxes <= {b for edge in edges for b in edge}  # none stands alone
    if shutil.which("dot"):
        assert found.write_graph(tmp_path / "drawn.svg") == [tmp_path / "drawn.dot", tmp_path / "drawn.svg"]
        assert "<svg" in (tmp_path / "drawn.svg").read_text()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="apt-get install graphviz"):
        found.write_graph(tmp_path / "other.svg")
    assert (tmp_path / "other.dot").read_text() == text
    with pytest.raises(ValueError, match="neither"):
        found.write_graph(tmp_path / "plan.png")


def test_results_are_the_models() -> None:
    """Explaining changes neither the model's results nor what is compiled later."""
    torch.manual_seed(1)
    model, x = Stack(), torch.randn(1, 32)
    expected = model(x)
    model.to("webgpu")
    with torch.no_grad():
        explain(model, x.to("webgpu"))
        compiled = torch.compile(model, backend="webgpu")
        with recorded() as calls:
            got = compiled(x.to("webgpu"))
    assert len(calls) == 1
    torch.testing.assert_close(got.cpu(), expected)


def test_paths_in_short() -> None:
    assert where(["a.b.0.x", "a.b.0.y"]) == "a.b.0.{x, y}"
    assert where(["a.b"]) == "a.b" and where([]) == "" and where(["n", "h"]) == "{n, h}"
    assert where(["a.b.c", "a.b"]) == "a.b.c"


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch_webgpu.llm
    from torch_webgpu.cli import app

    def load(*_: Any, **__: Any) -> tuple[Any, None]:
        return causal("qwen2-4-2").to("webgpu"), None

    monkeypatch.setattr(torch_webgpu.llm, "load", load)
    result = CliRunner().invoke(app, ["explain", "--json", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["plans"][0]["encoded"] == len(facts["plans"][0]["dispatches"]) == facts["totals"]["dispatches"]
    assert facts["breaks"] == [] and facts["op_by_op"] == [] and facts["fusion"] == "full"
    kernels = [d["kernel"] for d in facts["plans"][0]["dispatches"]]
    (name,) = {"decode_attention", "decode_row"} & set(kernels)  # by what the adapter can do
    assert kernels.count(name) == 2
    attention = next(d for d in facts["plans"][0]["dispatches"] if d["kernel"] == name)
    assert [m.split("model.layers.")[1] for m in attention["modules"]] == ["0.self_attn"]
    assert json.loads((tmp_path / "out" / "plan.json").read_text()) == facts
    assert len(list((tmp_path / "out" / "wgsl").iterdir())) == facts["totals"]["pipelines"]
    assert (tmp_path / "out" / "plan.dot").exists()
