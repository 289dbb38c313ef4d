"""Traces on disk: a method that is as it was is run without Dynamo; whatever it depends on makes it another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import generating
import models
import pytest
import torch
from torch import nn

from torch_webgpu import disk_cache
from torch_webgpu.compiler import backend, plan_cache, trace_cache
from torch_webgpu.compiler.plan_cache import StoredGraph
from torch_webgpu.compiler.program_state import ProgramState, UndescribableError
from torch_webgpu.compiler.trace_cache import Program
from torch_webgpu.llm import Generator, Sampling

DEVICE = "webgpu"
OFFSETS = {"one": 1.0, "two": 2.0}


def shifted(x: torch.Tensor) -> torch.Tensor:
    return x + OFFSETS["one"]


def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16, bias=False), nn.Linear(8, 16, bias=False)
        self.scale = 3.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) * self.second(x).sigmoid() * self.scale


class Owner:
    """What has a program: a layer, a setting, a tensor that is written, and an attribute that is not read."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.layer = Layer().to(DEVICE).eval()
        self.out = torch.zeros(1, 16, device=DEVICE)
        self.notes: Any = None
        self.settings: dict[str, Any] = {"negate": False}
        self.program = Program(self.step, ("program",))

    def step(self, x: torch.Tensor) -> None:
        y = shifted(self.layer(x))
        self.out.copy_(-y if self.settings["negate"] else y)

    def reads_ignored(self, x: torch.Tensor) -> None:
        self.out.copy_(x.sum() if self.program is None else x.mean())

    def counts(self, x: torch.Tensor) -> None:
        self.settings["calls"] = self.settings.get("calls", 0) + 1
        self.out.copy_(x.sum().expand(1, 16))

    def expected(self, x: torch.Tensor) -> torch.Tensor:
        """What ``step`` leaves, op by op."""
        with torch.no_grad():
            self.step(x)
        return self.out.clone()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own."""
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    monkeypatch.setattr(disk_cache, "folder", lambda: path)
    monkeypatch.setattr(backend, "compile_or_raise", _counted(backend.compile_or_raise))
    yield path
    torch._dynamo.reset()


_graphs = [0]  # that Dynamo traced


def _counted(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        _graphs[0] += 1
        return function(*args, **kwargs)

    return call


def traces(folder: Path) -> list[Path]:
    return sorted(folder.glob("trace-*"))


def called(owner: Owner, x: torch.Tensor | None = None, tolerance: float = 2e-5) -> bool:
    """Runs a program as in a fresh process, and compares; whether it ran without Dynamo."""
    torch._dynamo.reset()
    before = _graphs[0]
    x = torch.linspace(-1, 1, 8, device=DEVICE)[None] if x is None else x
    expected = owner.expected(x)
    for _ in range(2):
        owner.out.zero_()
        version = owner.out._version
        with torch.no_grad():
            graph, inputs = owner.program(x)
        torch.testing.assert_close(owner.out, expected, rtol=tolerance, atol=tolerance)
        assert owner.out._version > version
        graph.run(list(inputs))
        torch.testing.assert_close(owner.out, expected, rtol=tolerance, atol=tolerance)
    return isinstance(graph, StoredGraph) and _graphs[0] == before


def test_second_object_is_not_traced(folder: Path) -> None:
    assert not called(Owner())
    assert len(traces(folder)) == 1
    assert called(Owner())
    assert len(traces(folder)) == 1


def test_another_size_is_another_trace(folder: Path) -> None:
    for hit in (False, True):
        for n in (1, 3):
            owner = Owner()
            owner.out = torch.zeros(n, 16, device=DEVICE)
            assert called(owner, torch.ones(n, 8, device=DEVICE)) == hit
    assert len(traces(folder)) == 2


class OtherLayer(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) + self.second(x)


def _set(path: str, value: Any) -> Callable[[Owner, pytest.MonkeyPatch], None]:
    *parts, last = path.split(".")

    def change(owner: Owner, patch: pytest.MonkeyPatch) -> None:
        target: Any = owner
        for part in parts:
            target = getattr(target, part)
        patch.setattr(target, last, value() if callable(value) else value)

    return change


def _other_parameter(owner: Owner, patch: pytest.MonkeyPatch) -> None:
    owner.layer.first = nn.Linear(8, 16, bias=True).to(DEVICE)


def _hook(owner: Owner, patch: pytest.MonkeyPatch) -> None:
    owner.layer.register_forward_hook(lambda module, args, result: result * 2)


CHANGES: dict[str, Callable[[Owner, pytest.MonkeyPatch], None]] = {
    "attribute": _set("layer.scale", 4.0),
    "type of an attribute": _set("layer.scale", 3),
    "setting": _set("settings", lambda: {"negate": True}),
    "layer": lambda owner, patch: setattr(owner, "layer", OtherLayer().to(DEVICE)),
    "parameter": _other_parameter,
    "hook": _hook,
    "method of an object": lambda owner, patch: setattr(owner.layer, "forward", lambda x: owner.layer.first(x)),
    "method of a class": lambda owner, patch: patch.setattr(Layer, "forward", OtherLayer.forward),
    "method of torch": lambda owner, patch: patch.setattr(nn.Linear, "forward", lambda self, x: x @ self.weight.T * 5),
    "function": lambda owner, patch: patch.setattr(sys.modules[__name__], "shifted", halved),
    "global value": lambda owner, patch: patch.setitem(OFFSETS, "one", 7.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_program_is_traced(folder: Path, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    assert not called(Owner())
    owner = Owner()
    with monkeypatch.context() as patch:
        change(owner, patch)
        assert not called(owner)
    called(Owner())  # compares; where code alone had changed, the trace of that is replaced
    assert called(Owner())


@pytest.mark.parametrize("name", ["attribute", "setting", "layer", "parameter", "hook", "method of a class", "function"])
def test_change_after_a_hit_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    called(Owner())
    owner = Owner()
    assert called(owner)
    CHANGES[name](owner, monkeypatch)
    called(owner)  # compares with what is computed op by op


def test_hits_cost_no_walk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called(Owner())
    owner = Owner()
    called(owner)
    monkeypatch.setattr(trace_cache, "ProgramState", None)
    called(owner)


def test_weights_may_differ(folder: Path) -> None:
    called(Owner())
    owner = Owner()
    with torch.no_grad():
        owner.layer.first.weight.mul_(2)
    assert called(owner)
    owner.layer.second.weight = nn.Parameter(torch.ones(16, 8, device=DEVICE))
    called(owner)


@pytest.mark.parametrize("method", ["reads_ignored", "counts"])
def test_what_cannot_be_kept_is_traced(folder: Path, method: str) -> None:
    """A method that reads what it is said not to read, and one that changes more than tensors."""
    for _ in range(2):
        owner = Owner()
        program = Program(getattr(owner, method), ("program",))
        torch._dynamo.reset()
        with torch.no_grad():
            program(torch.ones(1, 16, device=DEVICE))
        assert owner.out.unique().tolist() == [16.0 if method == "counts" else 1.0]
    assert traces(folder) == []


def test_other_modes_are_other_traces(folder: Path) -> None:
    called(Owner())
    with torch.autocast("webgpu", torch.float16):  # fused, what is between two products stays in float32
        assert not called(Owner(), tolerance=5e-3)
    with torch.device("cpu"):  # a mode of functions, which may do anything
        assert not called(Owner())


def test_modes_are_seen_after_a_hit(folder: Path) -> None:
    called(Owner())
    owner = Owner()
    called(owner)
    (known,) = owner.program._restored
    args = (torch.linspace(-1, 1, 8, device=DEVICE)[None],)
    with torch.no_grad():
        assert trace_cache._kind(args) == known
        for mode in (
            torch.autocast("webgpu", torch.float16),
            torch.device("cpu"),
            torch.inference_mode(),
            torch.enable_grad(),
        ):
            with mode:
                assert trace_cache._kind(args) != known


@pytest.mark.parametrize("part", ["traced", "state", "graph", "inputs"])
def test_malformed_traces_are_ignored(folder: Path, part: str) -> None:
    called(Owner())
    (path,) = traces(folder)
    entry = disk_cache.load(path.stem)
    assert entry is not None
    for broken in ({k: v for k, v in entry.items() if k != part}, {**entry, part: [["state", 10**6]]}):
        disk_cache.store(path.stem, broken)
        assert not called(Owner())
    assert called(Owner())


@pytest.mark.parametrize("gone", ["plan", "graph"])
def test_trace_without_its_plan_is_traced(folder: Path, gone: str) -> None:
    called(Owner())
    for path in folder.glob(f"{gone}-*"):
        path.unlink()
    assert not called(Owner())
    called(Owner())
    assert called(Owner())


def test_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called(Owner())
    with plan_cache.bypassed():
        assert not called(Owner())


# ---------------------------------------------------------------------------------------------------- descriptions


class Plain:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def digest(**attributes: Any) -> str:
    return ProgramState([Plain(**attributes)]).digest


@pytest.mark.once
def test_descriptions_tell_values_apart() -> None:
    shared: list[int] = []
    values: list[Any] = [
        *(None, True, 1, 1.0, -0.0, 0.0, "1", b"1", 1j, torch.float32, torch.device("cpu"), [1], (1,), {1: 1}, {1}, [[1]]),
        *([shared, shared], [[], []], {"a": 1, "b": 2}, {"b": 2, "a": 1}, shifted, halved, Layer, OtherLayer, Owner.step),
        *(torch.zeros(2), torch.zeros(3), torch.zeros(2, dtype=torch.float16), nn.Parameter(torch.zeros(2)), slice(1, 2)),
        *(torch.zeros(2, 3), torch.zeros(3, 2).T, Plain(a=1), Plain(a=2), nn.Linear, nn.ReLU(), nn.ReLU().eval()),
        *(lambda x: x + 1, lambda x: x + 2, _closure(1), _closure(2), _default(1), _default(2), float("nan")),
    ]
    found = [digest(value=v) for v in values]
    assert len(set(found)) == len(values)
    assert found == [digest(value=v) for v in values]
    assert digest(value={3, 1, 2}) == digest(value={2, 3, 1})


def _closure(n: int) -> Callable[[], int]:
    return lambda: n


def _default(n: int) -> Callable[..., int]:
    return lambda x=n: x


@pytest.mark.once
@pytest.mark.parametrize("value", [(i for i in range(3)), torch.Generator(), iter([1]), {Plain()}, [memoryview(b"")]])
def test_what_has_no_description(value: Any) -> None:
    with pytest.raises(UndescribableError):
        ProgramState([Plain(value=value)])
    with pytest.raises(UndescribableError):  # also where something that is not traced was met with it before
        ProgramState([Plain(first=_closure(value), second=value)])


@pytest.mark.once
def test_what_has_no_influence() -> None:
    lock = threading.Lock()
    assert digest(lock=lock) == digest(lock=threading.Lock())
    state = ProgramState([Plain(seen=1, skipped=2, _webgpu_note=3)], ignored=("skipped",))
    assert state.digest == ProgramState([Plain(seen=1, skipped=4)], ignored=("skipped",)).digest
    assert state.digest != ProgramState([Plain(seen=2, skipped=2)], ignored=("skipped",)).digest


@pytest.mark.once
def test_tensors_are_found_again() -> None:
    layer = nn.Linear(2, 2)
    plain = Plain(layer=layer, tensors=[torch.zeros(1), layer.weight])
    state = ProgramState([plain])
    found = {id(container[key]) for container, key in state.tensors}
    assert found == {id(layer.weight), id(layer.bias), id(plain.__dict__["tensors"][0])}
    assert state.place(torch.zeros(1)) is None and state.intact()
    layer.weight = nn.Parameter(torch.ones(2, 2))
    assert not state.intact()


# ---------------------------------------------------------------------------------------------------- generators


def _tokens(generator: Generator, seed: int | None = None) -> list[list[int]]:
    return [generator(generating.prompt_of(n), 6, (), seed) for n in (5, 20, 7)]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, top_k=20)], ids=["greedy", "sampled"])
def test_generator_without_tracing(folder: Path, sampling: Sampling) -> None:
    model = generating.small()[1]
    expected = _tokens(Generator(model, 64, sampling), seed=3)
    assert len(traces(folder)) == 3  # two sizes of prompts, and the step
    torch._dynamo.reset()
    before = _graphs[0]
    generator = Generator(model, 64, sampling)
    assert _tokens(generator, seed=3) == expected
    assert _graphs[0] == before
    if not sampling.temperature:
        assert expected[0] == generating.greedy(generating.small()[0], generating.prompt_of(5), 6)
    generator.prefill(generating.prompt_of(40))  # of a size that has no trace yet
    assert _graphs[0] == before + 1
    assert _tokens(generator, seed=3) == expected


CHILD = """
import json, sys, torch
sys.path.insert(0, sys.argv[1])
import models
from torch_webgpu.compiler import backend
from torch_webgpu.llm import Generator
compile_graph, graphs = backend.compile_or_raise, []
backend.compile_or_raise = lambda *args: graphs.append(1) or compile_graph(*args)
generator = Generator(models.causal("qwen2-4-2").to("webgpu"), 48)
tokens = generator([5, 6, 7], 5, ())
print(json.dumps([tokens, len(graphs)]))
"""


@pytest.mark.once
def test_generator_in_another_process(tmp_path: Path) -> None:
    from torch_webgpu import runtime

    settings = {"TORCH_WEBGPU_CACHE": str(tmp_path / "own"), "TORCH_WEBGPU_IMPL": runtime.device().adapter.implementation}
    found = []
    for seed in ("1", "2"):  # of Python's hashes, which nothing may depend on
        environment = os.environ | settings | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", CHILD, str(Path(models.__file__).parent)]
        out = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True).stdout
        found.append(json.loads(out))
    assert found[0][0] == found[1][0]
    assert [graphs for _, graphs in found] == [2, 0]
