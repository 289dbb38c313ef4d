"""Several threads on the one device."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch


def test_four_threads_compute_right() -> None:
    start = threading.Barrier(4)

    def work(seed: int) -> bool:
        g = torch.Generator().manual_seed(seed)
        start.wait()
        for i in range(50):
            n = 1 + int(torch.randint(1, 3000, (), generator=g))
            a, b = torch.randn(n, generator=g), torch.randn(n, generator=g)
            x, y = a.to("webgpu"), b.to("webgpu")
            got, want = (x * 2 + y).clamp(min=0) - i, (a * 2 + b).clamp(min=0) - i
            x[n // 2 :] = y[n // 2 :]
            a[n // 2 :] = b[n // 2 :]
            if not torch.allclose(got.cpu(), want, atol=1e-6) or not torch.equal(x.cpu(), a):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [True] * 4


def test_new_kernels_from_several_threads_at_once() -> None:
    start = threading.Barrier(4)

    def work(seed: int) -> list[list[float]]:
        start.wait()
        x = torch.tensor([1.0, 2.0, 3.0], device="webgpu") * (seed + 1)
        ops = [torch.sin, torch.erf, torch.sinh, torch.log1p, torch.exp2, torch.asinh, torch.atan, torch.rsqrt]
        return [op(x).tolist() for op in ops]

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(4)))
    for seed, values in enumerate(results):
        x = torch.tensor([1.0, 2.0, 3.0]) * (seed + 1)
        ops = [torch.sin, torch.erf, torch.sinh, torch.log1p, torch.exp2, torch.asinh, torch.atan, torch.rsqrt]
        for got, op in zip(values, ops, strict=True):
            torch.testing.assert_close(torch.tensor(got), op(x), atol=1e-5, rtol=1e-4)


def test_tensors_pass_between_threads() -> None:
    x = torch.arange(100.0, device="webgpu")
    made: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: made.append(x * 2))
    thread.start()
    thread.join()
    assert torch.equal(made[0].cpu(), torch.arange(100.0) * 2)
    dropper = threading.Thread(target=made.clear)
    dropper.start()
    dropper.join()
    assert torch.equal((x + 1).cpu(), torch.arange(100.0) + 1)


def test_backward_runs_in_autograds_own_thread() -> None:
    x = torch.arange(5.0, device="webgpu", requires_grad=True)
    (x * x).backward(torch.ones(5, device="webgpu"))
    assert x.grad is not None
    assert x.grad.tolist() == [0, 2, 4, 6, 8]
    gradients: list[torch.Tensor | None] = []

    def work() -> None:
        y = torch.ones(3, device="webgpu", requires_grad=True)
        (y * 3).backward(torch.ones(3, device="webgpu"))
        gradients.append(y.grad)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [g.tolist() for g in gradients if g is not None] == [[3, 3, 3]] * 4


def test_errors_stay_in_their_thread() -> None:
    def work(bad: bool) -> str:
        x = torch.ones(3, device="webgpu")
        for _ in range(20):
            try:
                x + (torch.ones(4, device="webgpu") if bad else 1)
            except RuntimeError:
                if not bad:
                    return "raised"
            else:
                if bad:
                    return "did not raise"
        return "right"

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, [True, False, True, False])) == ["right"] * 4
