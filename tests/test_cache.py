"""Plans on disk: found again by what made them, ignored where anything is different or damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torch_webgpu import disk_cache
from torch_webgpu.compiler import backend, plan_cache
from torch_webgpu.compiler.executor import recorded
from torch_webgpu.compiler.plan_cache import StoredGraph
from torch_webgpu.config import config


class Memory(nn.Module):
    """Layers over one input, a written buffer, an op that may report errors, and random-free arithmetic."""

    seen: torch.Tensor
    at: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32, bias=False), nn.Linear(16, 32, bias=False)
        self.table = nn.Embedding(7, 16)
        self.register_buffer("seen", torch.zeros(4, 32))
        self.register_buffer("at", torch.zeros(1, dtype=torch.int64))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        y = torch.nn.functional.silu(self.first(x)) * self.second(x)
        self.seen.index_copy_(0, self.at, y)
        self.at.add_(1)
        return self.seen.sum(0) + y.softmax(-1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own."""
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    monkeypatch.setattr(disk_cache, "folder", lambda: path)
    yield path
    torch._dynamo.reset()


def entries(folder: Path) -> list[Path]:
    """Plans in a folder; an entry of their graph is beside them."""
    return sorted(folder.glob("plan-*.entry"))


def compiled_call(model: Any, *args: Any, **options: Any) -> tuple[Any, bool]:
    """The result of a fresh compilation, and whether its plan came from disk."""
    torch._dynamo.reset()
    start = len(backend.compiled)
    with torch.no_grad():
        result = torch.compile(model, backend="webgpu", **options)(*args)
    graphs = backend.compiled[start:]
    stored = [g for g in graphs if isinstance(g, StoredGraph)]
    assert len(stored) <= 1
    return result, bool(stored) and stored[0]._instead is None


def memory() -> Memory:
    torch.manual_seed(0)
    return Memory().to("webgpu")


def test_hit_computes_the_same(folder: Path) -> None:
    ids = torch.tensor([3], device="webgpu")
    first, second = memory(), memory()
    expected, hit = compiled_call(first, ids)
    assert not hit and len(entries(folder)) == 1
    version = second.seen._version
    got, hit = compiled_call(second, ids)
    assert hit and len(entries(folder)) == 1
    assert torch.equal(got, expected) and torch.equal(first.seen, second.seen) and second.at.item() == 1
    assert second.seen._version > version  # autograd must know of the write
    torch.testing.assert_close(got.cpu(), Memory.forward(_fresh_cpu(), torch.tensor([3])))


def _fresh_cpu() -> Memory:
    torch.manual_seed(0)
    return Memory()


def test_hit_replays_again_and_reports_errors(folder: Path) -> None:
    ids = torch.tensor([3], device="webgpu")
    compiled_call(memory(), ids)
    model = memory()
    torch._dynamo.reset()
    run = torch.compile(model, backend="webgpu")
    with torch.no_grad(), recorded() as calls:
        results = [run(ids).cpu() for _ in range(3)]
    assert isinstance(calls[0][0], StoredGraph) and len(calls) == 3
    reference = _fresh_cpu()
    for got in results:
        torch.testing.assert_close(got, reference(torch.tensor([3])).detach())
    graph, inputs = calls[0]
    graph.run(list(inputs))  # as the generator does
    assert model.at.item() == 4
    model.at.zero_()
    with torch.no_grad(), pytest.raises(IndexError, match="7"):
        run(torch.tensor([7], device="webgpu"))
        torch.webgpu.synchronize()  # type: ignore[attr-defined]


def _changed(name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(plan_cache, name, lambda: value)


@pytest.mark.parametrize(
    "change",
    [_changed("_sources", "other sources"), _changed("environment", ["another device"]), _changed("modes", ["other"])],
    ids=["version", "device", "modes"],
)
def test_another_environment_misses(folder: Path, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    x = torch.ones(3, device="webgpu")
    assert not compiled_call(lambda x: x * 2 + 1, x)[1]
    plan_cache.environment.cache_clear()
    change(monkeypatch)
    assert not compiled_call(lambda x: x * 2 + 1, x)[1]
    assert len(entries(folder)) == 2
    monkeypatch.undo()
    plan_cache.environment.cache_clear()


def test_the_key_covers_graph_inputs_and_level(folder: Path) -> None:
    x = torch.arange(12.0, device="webgpu").reshape(3, 4)
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (lambda x: x * 2 + 1, (x,), {}),
        (lambda x: x * 2 + 1.5, (x,), {}),
        (lambda x: x * 2 - 1, (x,), {}),
        (lambda x: (x * 2 + 1).sum(0), (x,), {}),
        (lambda x: (x * 2 + 1).sum(1), (x,), {}),
        (lambda x: x * 2 + 1, (x.T,), {}),
        (lambda x: x * 2 + 1, (x[1:],), {}),
        (lambda x: x * 2 + 1, (x.half(),), {}),
        (lambda x: x * 2 + 1, (x,), {"options": {"fusion": "none"}}),
        (lambda x, y: x * 2 + y, (x, x.clone()), {}),
        (lambda x, y: x * 2 + y, (x, x.view(3, 4)), {}),
    ]
    for round_ in range(2):
        for i, (function, args, options) in enumerate(calls):
            got, hit = compiled_call(function, *args, **options)
            assert hit == (round_ == 1), (round_, i)
            torch.testing.assert_close(got.cpu(), function(*(a.cpu() for a in args)))
    assert len(entries(folder)) == len(calls)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda x: x.view(4, 3), ()),  # a result that shares memory
        (lambda x: (x * 2, x.transpose(0, 1)), ()),
        (lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device), ()),  # a constant beside the graph
    ],
    ids=["view", "one of two", "constant"],
)
def test_what_needs_more_than_the_plan_is_compiled(folder: Path, function: Any, args: tuple[Any, ...]) -> None:
    x = torch.arange(12.0, device="webgpu").reshape(3, 4)
    for _ in range(2):
        got, hit = compiled_call(function, x, *args)
        assert not hit
        expected = function(x.cpu(), *args)
        for g, e in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, expected)), strict=True):
            torch.testing.assert_close(g.cpu(), e)
    assert entries(folder) == []


def test_training_is_not_kept(folder: Path) -> None:
    layer = nn.Linear(4, 4).to("webgpu")
    for _ in range(2):
        torch._dynamo.reset()
        torch.compile(layer, backend="webgpu")(torch.ones(2, 4, device="webgpu")).sum().backward()
    assert entries(folder) == []


def test_changing_sizes_are_compiled(folder: Path) -> None:
    """One graph serves all sizes, where a plan from disk would serve one."""
    for _ in range(2):
        for n in (2, 3):
            got, hit = compiled_call(lambda x: x.sum(0) * x.shape[0], torch.ones(n, 4, device="webgpu"), dynamic=True)
            assert not hit and got.tolist() == [n * n] * 4


def test_graph_without_its_plan_is_compiled(folder: Path) -> None:
    """As where the plan was evicted, or made for other places of the inputs."""
    ids = torch.tensor([3], device="webgpu")
    expected, _ = compiled_call(memory(), ids)
    (path,) = entries(folder)
    path.rename(folder / f"plan-{'0' * 64}.entry")
    got, hit = compiled_call(memory(), ids)
    assert not hit and torch.equal(got, expected)
    assert not path.exists() and not list(folder.glob("graph-*"))  # the next process makes both anew
    compiled_call(memory(), ids)
    assert path.exists()
    assert compiled_call(memory(), ids)[1]


def _damage(data: bytes, how: str) -> bytes:
    if how == "empty":
        return b""
    if how == "foreign":
        return b"\x80\x04\x95not ours at all"
    if how == "flipped":
        at = len(data) - 40
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    return data[: {"half": len(data) // 2, "header": 30, "last byte": len(data) - 1}[how]]


@pytest.mark.parametrize("how", ["empty", "foreign", "flipped", "half", "header", "last byte"])
def test_damaged_entries_are_ignored_and_replaced(folder: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.ones(3, device="webgpu")
    compiled_call(lambda x: x * 2 + 1, x)
    (path,) = entries(folder)
    path.write_bytes(_damage(path.read_bytes(), how))
    with caplog.at_level("DEBUG", logger="torch_webgpu.disk_cache"):
        got, hit = compiled_call(lambda x: x * 2 + 1, x)
    assert not hit and got.tolist() == [3.0] * 3
    assert "ignored" in caplog.text
    assert not compiled_call(lambda x: x * 2 + 1, x)[1]  # both are made anew
    assert compiled_call(lambda x: x * 2 + 1, x)[1]


def test_entry_under_another_name_is_ignored(folder: Path) -> None:
    x = torch.ones(3, device="webgpu")
    compiled_call(lambda x: x * 2 + 1, x)
    (one,) = entries(folder)
    compiled_call(lambda x: x * 2 + 5, x)
    (two,) = set(entries(folder)) - {one}
    two.write_bytes(one.read_bytes())
    got, hit = compiled_call(lambda x: x * 2 + 5, x)
    assert not hit and got.tolist() == [7.0] * 3


@pytest.mark.parametrize("part", ["steps", "pipelines", "counts", "outputs"])
def test_malformed_contents_are_compiled_again(folder: Path, part: str) -> None:
    x = torch.ones(3, device="webgpu")
    compiled_call(lambda x: x * 2 + 1, x)
    (path,) = entries(folder)
    entry = disk_cache.load(path.stem)
    assert entry is not None
    del entry[part]
    disk_cache.store(path.stem, entry)
    got, hit = compiled_call(lambda x: x * 2 + 1, x)
    assert not hit and got.tolist() == [3.0] * 3


def test_shader_that_does_not_compile_is_made_again(folder: Path) -> None:
    x = torch.ones(3, device="webgpu")
    compiled_call(lambda x: x * 2 + 1, x)
    (path,) = entries(folder)
    entry = disk_cache.load(path.stem)
    assert entry is not None
    entry["pipelines"][0]["code"] = "not WGSL"
    disk_cache.store(path.stem, entry)
    got, hit = compiled_call(lambda x: x * 2 + 1, x)
    assert not hit and got.tolist() == [3.0] * 3


@pytest.mark.once
def test_least_recently_used_entries_go_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "LIMIT", 4000)
    for i in range(3):
        assert disk_cache.store(f"entry{i}", "x" * 1000)
        os.utime(folder / f"entry{i}.entry", (100.0 + i, 100.0 + i))
    stale, recent = folder / "unfinished-dead", folder / "unfinished-alive"
    for file in (stale, recent):
        file.write_text("half")
    os.utime(stale, (100.0, 100.0))
    assert disk_cache.load("entry0") == "x" * 1000  # used: the second is the oldest now
    disk_cache.store("entry3", "x" * 1000)
    disk_cache.store("entry4", "x" * 1000)
    kept = {p.stem for p in folder.glob("*.entry")}
    assert "entry1" not in kept and {"entry0", "entry4"} <= kept
    assert sum(p.stat().st_size for p in folder.glob("*.entry")) <= 4000
    assert not stale.exists() and recent.exists()


@pytest.mark.once
def test_readers_never_see_half_an_entry(folder: Path) -> None:
    values = [{"number": n, "padding": "x" * (20000 + 5000 * n)} for n in range(4)]
    stop = threading.Event()

    def write(value: Any) -> None:
        while not stop.is_set():
            disk_cache.store("shared", value)

    threads = [threading.Thread(target=write, args=(v,)) for v in values]
    for t in threads:
        t.start()
    end, seen = time.monotonic() + 1.5, 0
    while time.monotonic() < end:
        if (found := disk_cache.load("shared")) is not None:
            assert found == values[found["number"]]
            seen += 1
        elif seen:
            pytest.fail("an entry that was there is gone")
    stop.set()
    for t in threads:
        t.join()
    assert seen > 10 and not list(folder.glob("unfinished-*"))


def _folder(setting: str, monkeypatch: pytest.MonkeyPatch) -> Path | None:
    monkeypatch.setattr(disk_cache, "config", replace(config, cache=setting))
    return disk_cache.folder.__wrapped__()


@pytest.mark.once
def test_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for off in ("0", "off", "OFF"):
        assert _folder(off, monkeypatch) is None
    assert _folder(str(tmp_path / "mine"), monkeypatch) == tmp_path / "mine"
    assert (tmp_path / "mine").is_dir()
    (tmp_path / "file").write_text("no folder")
    assert _folder(str(tmp_path / "file" / "below"), monkeypatch) is None
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert _folder("", monkeypatch) == tmp_path / "xdg" / "torch_webgpu" / "compiled"
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert disk_cache.user_folder() == Path.home() / ".cache" / "torch_webgpu"


@pytest.mark.once
@pytest.mark.skipif(sys.platform == "win32", reason="Windows folders have access lists in place of these modes")
def test_folder_that_others_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    assert _folder(str(tmp_path / "shared"), monkeypatch) is None
    (tmp_path / "shared").chmod(0o700)
    assert _folder(str(tmp_path / "shared"), monkeypatch) == tmp_path / "shared"


CHILD = """
import json, sys, torch, torch_webgpu
from torch_webgpu.compiler import backend
torch.manual_seed(0)
from torch.nn import Linear, RMSNorm, Sequential, SiLU
layer = Sequential(Linear(8, 16), SiLU(), RMSNorm(16), Linear(16, 4)).to("webgpu")
print("ready", flush=True)
sys.stdin.readline()
with torch.no_grad():
    result = torch.compile(layer, backend="webgpu")(torch.arange(8.0, device="webgpu")[None])
kinds = [type(g).__name__ for g in backend.compiled]
print(json.dumps([result.tolist(), kinds, len(backend.compiled[-1].plans[0].dispatches)]))
"""


@pytest.mark.once
def test_two_processes_and_a_third(tmp_path: Path) -> None:
    """Two that compile at once may both write the entry; a later one replays it."""
    import torch_webgpu.runtime

    implementation = torch_webgpu.runtime.device().adapter.implementation
    environment = os.environ | {"TORCH_WEBGPU_CACHE": str(tmp_path / "cache"), "TORCH_WEBGPU_IMPL": implementation}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    processes = [subprocess.Popen([sys.executable, "-c", CHILD], **pipes) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes[:2]:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    found = []
    for process in processes:  # the third starts when the others are done
        out, _ = process.communicate("\n" if process is processes[2] else None, timeout=300)
        assert process.returncode == 0
        found.append(json.loads(out))
    results, kinds, dispatches = zip(*found, strict=True)
    assert results[0] == results[1] == results[2] and len(set(dispatches)) == 1
    assert ["CompiledGraph"] in kinds[:2] and kinds[2] == ["StoredGraph"]  # the slower of two may find what the other wrote
    assert sorted(p.name.split("-")[0] for p in (tmp_path / "cache").iterdir()) == ["graph", "plan"]
