"""Faults made on purpose: memory runs out, a device is lost, a shader is wrong, a process is killed or interrupted."""

# torch.webgpu is made at run time.
# mypy: disable-error-code="attr-defined"
from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
from child import IMPLEMENTATIONS, Result, output_of, run_python

import torch_webgpu
from torch_webgpu import recipe, wgsl

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits the address space of a process, which Linux enforces")
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")

# ---------------------------------------------------------------------------------------------------- memory

#: The device of these tests takes its memory from the host's, so that a limit of the process is a limit of the device.
SHORT = """
    import resource, sys, torch, torch_webgpu
    from torch_webgpu import _C
    if torch.webgpu.get_device_properties().kind != "cpu":
        print("not a CPU rasteriser")
        sys.exit()
    mega = 1 << 20
    def block(megabytes):
        return torch.empty(megabytes * mega, dtype=torch.uint8, device="webgpu")
    x = torch.ones(1000, device="webgpu")
    assert (x + 1).cpu().sum() == (x * 2).sum().item()
    host = torch.zeros(64 * mega, dtype=torch.uint8)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 600 * mega,) * 2)
"""


def short_of_memory(code: str, implementation: str) -> list[str]:
    lines = output_of(textwrap.dedent(SHORT) + textwrap.dedent(code), TORCH_WEBGPU_IMPL=implementation).splitlines()
    if lines == ["not a CPU rasteriser"]:
        pytest.skip("the memory of this adapter cannot be made short for one process")
    return lines


@LINUX
@pytest.mark.once
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_out_of_memory(implementation: str) -> None:
    """It raises, the device goes on; cached buffers of another size make room before that."""
    code = """
        kept = []
        pending = x * 3  # recorded, not submitted
        for _ in range(2):
            try:
                while True:
                    kept.append(block(64))
            except torch.OutOfMemoryError as e:
                print(type(e).__name__, len(kept) >= 6, e)
            print(pending.sum().item(), (x + 1).sum().item())
        try:
            kept[0].float()
        except torch.OutOfMemoryError as e:
            print("tried to allocate 268435456 bytes" in str(e))
        kept.clear()  # to the cache
        assert torch.webgpu.memory_reserved() >= 6 * 64 * mega
        big = block(200).fill_(7)  # fits only once the cache is emptied
        print(int(big[-5:].sum()), torch.webgpu.memory_reserved() < 264 * mega)
        del big
        small = [block(16).fill_(i) for i in range(12)]
        print([int(t[-1]) for t in small])
    """
    lines = short_of_memory(code, implementation)
    for error, results in ((lines[0], lines[1]), (lines[2], lines[3])):
        assert error.startswith("OutOfMemoryError True WebGPU out of memory: tried to allocate 67108864 bytes; the")
        assert "Free tensors, or split the tensor into smaller ones." in error
        assert results == "3000.0 2000.0"
    assert lines[4:] == ["True", "35 True", str(list(range(12)))]


@LINUX
@pytest.mark.once
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_no_memory_to_read_back(implementation: str) -> None:
    """What was recorded before is not lost with the buffer that could not be made."""
    code = """
        kept = [block(60).fill_(5)]
        torch.webgpu.synchronize()
        try:
            while True:
                kept.append(block(40))
        except torch.OutOfMemoryError:
            pass
        y = x + 4  # recorded, not submitted
        try:
            host[: 60 * mega].copy_(kept[0])
        except torch.OutOfMemoryError as e:
            print(e)
        print(y.sum().item())
        del kept[1:]
        torch.webgpu.empty_cache()
        torch.webgpu.synchronize()
        host[: 60 * mega].copy_(kept[0])
        print(int(host[60 * mega - 1]), int(host[0]))
    """
    lines = short_of_memory(code, implementation)
    assert "the device refused the staging buffer" in lines[0] and "smaller pieces" in lines[0]
    assert lines[1:] == ["5000.0", "5 5"]


# ---------------------------------------------------------------------------------------------------- shaders and the device


def test_a_wrong_shader_names_its_op_and_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(6.0, device="webgpu").reshape(2, 3)
    assemble = wgsl.assemble
    with monkeypatch.context() as patched:
        patched.setattr(recipe.wgsl, "assemble", lambda *a: assemble(*a).replace("fn main", "fn main_ oops"))
        recipe.clear_pipelines()
        for _ in range(2):
            with pytest.raises(torch_webgpu.ShaderError, match=r"The shader of flip \(.*\) does not compile") as caught:
                x.flip(0)
            assert "fn main_ oops" in str(caught.value) and " | " in str(caught.value)
    assert x.flip(0).tolist() == [[3, 4, 5], [0, 1, 2]]


def test_a_wrong_shader_in_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised as by an op, and compiled again at the next call."""
    x = torch.arange(6.0, device="webgpu")
    compiled = torch.compile(lambda t: torch.sin(t) * 3 + t.flip(0), backend="webgpu")
    want = torch.sin(x) * 3 + x.flip(0)
    from torch_webgpu.compiler import executor

    def broken(*_: object, **__: object) -> None:
        raise torch_webgpu.ShaderError("The shader of sin (fused) does not compile: made up")

    with monkeypatch.context() as patched:
        patched.setattr(executor, "assemble", broken)
        with pytest.raises(torch_webgpu.ShaderError, match="made up"):
            compiled(x)
    torch.testing.assert_close(compiled(x), want)


LOST_WHILE_PROFILED = """
    import ctypes, torch, torch_webgpu
    from torch_webgpu import _C

    class View(ctypes.Structure):
        _fields_ = [("data", ctypes.c_char_p), ("length", ctypes.c_size_t)]

    x = torch.ones(4, device="webgpu")
    p = torch.profiler.profile()
    p.start()
    y = x + 1
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, View, ctypes.c_void_p, ctypes.c_void_p)
    kind(_C.callbacks()[1])(None, 1, View(b"GPU fell off", 12), None, None)
    try:
        p.stop()  # waits for the device
    except torch_webgpu.DeviceLostError as e:
        print(e)
    torch.webgpu.reset()
    p.stop()
    print("aten::add" in {e.name for e in p.events()})
    with torch.profiler.profile() as p:
        z = (torch.ones(4, device="webgpu") * 2).cpu()
    print(z.tolist(), len([e for e in p.events() if e.device_type == torch.autograd.DeviceType.PrivateUse1]))
"""


@pytest.mark.once
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_device_lost_while_it_is_profiled(implementation: str) -> None:
    lines = output_of(LOST_WHILE_PROFILED, TORCH_WEBGPU_IMPL=implementation).splitlines()
    assert "GPU fell off" in lines[0] and "torch.webgpu.reset()" in lines[0]
    # Launches have times where the adapter has them.
    assert lines[1:] in (["True", "[2.0, 2.0, 2.0, 2.0] 2"], ["True", "[2.0, 2.0, 2.0, 2.0] 0"])


# ---------------------------------------------------------------------------------------------------- the cache on disk

STORE = """
    import os, signal
    from torch_webgpu import disk_cache
    {fault}
    disk_cache.store("graph-" + "0" * 64, "much to write " * 1000)
"""
COMPILE = """
    import torch, torch_webgpu
    from torch_webgpu import disk_cache
    from torch_webgpu.compiler import backend
    x = torch.arange(8.0, device="webgpu")
    for _ in range(2):
        torch._dynamo.reset()
        with torch.no_grad():
            result = torch.compile(lambda t: torch.sin(t) * 2 + 1, backend="webgpu")(x)
        assert torch.allclose(result.cpu(), torch.sin(x.cpu()) * 2 + 1, atol=1e-5)
    print([type(g).__name__ for g in backend.compiled], disk_cache.load("graph-" + "0" * 64))
"""
KILLED_WHILE_WRITING = """
    import io
    write, put = os.fdopen, os.replace
    class Half(io.BytesIO):
        def write(self, data):
            os.write(self.handle, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
    def fdopen(handle, mode):
        file = Half()
        file.handle = handle
        return file
    os.fdopen = fdopen
"""
KILLED_BEFORE_THE_NAME = "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)"


@POSIX
@pytest.mark.once
def test_a_process_killed_while_it_writes_the_cache(tmp_path: Path) -> None:
    """What it leaves is no entry: the next process compiles, keeps the plan and finds it."""
    cache = tmp_path / "cache"
    for fault in (KILLED_WHILE_WRITING, KILLED_BEFORE_THE_NAME):
        code = textwrap.dedent(STORE).replace("{fault}", textwrap.dedent(fault))
        assert run_python(code, TORCH_WEBGPU_CACHE=str(cache)).code == -signal.SIGKILL
    assert [p.name.split("-")[0] for p in cache.iterdir()] == ["unfinished"] * 2
    assert output_of(COMPILE, TORCH_WEBGPU_CACHE=str(cache)) == "['CompiledGraph', 'StoredGraph'] None"
    assert sorted(p.name.split("-")[0] for p in cache.iterdir()) == ["graph", "plan", "unfinished", "unfinished"]


# ---------------------------------------------------------------------------------------------------- interrupts


def interrupted(code: str, **environment: str) -> Result:
    """Runs code and sends it Ctrl-C half a second after each time that it prints ``go``."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | environment,
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    killer = threading.Timer(300, process.kill)
    killer.start()
    said = []
    for line in process.stdout:
        if line == "go\n":
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
        else:
            said.append(line)
    err = process.stderr.read()
    status = process.wait()
    killer.cancel()
    return Result("".join(said), err, status)


LOOPS = """
    import torch, torch_webgpu
    x = torch.ones(64, 64, device="webgpu") / 64
    for last in (lambda: None, lambda: x[0, 0].item(), torch.webgpu.synchronize, lambda: x[:5].to("cpu")):
        done = 0
        print("go", flush=True)
        try:
            while True:
                x = x @ x
                done += 1
                last()
        except KeyboardInterrupt:
            print("interrupted", done > 0)
        assert torch.allclose(x.cpu(), torch.full((64, 64), 1 / 64))
        print(torch.arange(5, device="webgpu").sum().item(), flush=True)
    print("go", flush=True)
    while True:  # without a handler: a traceback, and the exit status of an interrupt
        x = x @ x
"""


@POSIX
@pytest.mark.once
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_ctrl_c_in_long_loops(implementation: str) -> None:
    """While ops are queued, while a number or a tensor is read, while the device is waited for."""
    result = interrupted(LOOPS, TORCH_WEBGPU_IMPL=implementation)
    assert result.out.splitlines() == ["interrupted True", "10"] * 4
    assert result.code == -signal.SIGINT and result.err.rstrip().endswith("KeyboardInterrupt")


GENERATE = """
    import torch, torch_webgpu
    from generating import greedy, prompt_of, small
    from torch_webgpu.llm import Generator
    reference, model = small()
    generator, prompt = Generator(model, 64), prompt_of(9)
    want = greedy(reference, prompt, 20)
    assert generator(prompt, 20, eos=()) == want == greedy(model, prompt, 20)
    for generate in (lambda: list(generator.stream(prompt, 50, eos=())), lambda: greedy(model, prompt, 50)):
        print("go", flush=True)
        try:
            while True:
                generate()
        except KeyboardInterrupt:
            print("interrupted")
        print(generator(prompt, 20, eos=()) == want, greedy(model, prompt, 20) == want, flush=True)
"""


@POSIX
@pytest.mark.once
def test_ctrl_c_while_a_text_is_generated() -> None:
    """By plans, and by transformers op by op."""
    result = interrupted(GENERATE)
    assert result.code == 0, result.err
    assert result.out.splitlines() == ["interrupted", "True True"] * 2


# ---------------------------------------------------------------------------------------------------- the end of a process

ENDINGS = {
    "much": """
        import atexit
        class Node:
            def __del__(self):
                self.x.add_(1)  # uses the device when Python is almost gone
        a, b = Node(), Node()
        a.other, b.other, a.x, b.x = b, a, x * 2, x * 3  # refer to each other
        f = torch.compile(lambda t: (t * 2).sum(), backend="webgpu")
        w = x.clone().requires_grad_()
        loss = f(w)
        loss.backward()
        generator = torch.Generator("webgpu")
        y = x * 2  # recorded, not submitted
        atexit.register(lambda: print((x + 1).sum().item()))
    """,
    "early": "y = x * 2; raise SystemExit(3)",
    "with threads": """
        import threading, time
        results = []
        def work(rest):
            results.append((x + 1) * 2)
            time.sleep(rest)
        for rest in (0, 1000):
            threading.Thread(target=work, args=(rest,), daemon=True).start()
        while len(results) < 2:
            time.sleep(0.01)
    """,
}


@pytest.mark.once
@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_process_ends_without_noise(implementation: str, how: str) -> None:
    code = "import torch\nx = torch.ones(1000, device='webgpu')\n" + textwrap.dedent(ENDINGS[how])
    result = run_python(code, TORCH_WEBGPU_IMPL=implementation)
    assert result.err == ""
    assert result.code == (3 if how == "early" else 0)
    assert result.out == ("2000.0\n" if how == "much" else "")
