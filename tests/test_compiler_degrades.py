"""What no plan can hold runs eagerly, says why in the log of ``torch_webgpu.compiler``, and gives the right result."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from child import run_python

from torch_webgpu.compiler import backend, executor
from torch_webgpu.errors import LimitError

DEVICE = "webgpu"
X = torch.arange(12.0).view(3, 4)
LOGGER = "torch_webgpu.compiler"


@pytest.fixture(autouse=True)
def fresh(caplog: pytest.LogCaptureFixture) -> None:
    """No guards of an earlier test; warnings of the compiler alone."""
    torch._dynamo.reset()
    caplog.set_level(logging.WARNING, logger=LOGGER)


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == LOGGER]


def check(function: Callable[..., Any], *inputs: torch.Tensor, calls: int = 2) -> None:
    """Results and written inputs are those of the CPU, call after call."""
    compiled = torch.compile(function, backend="webgpu")
    for _ in range(calls):
        here, there = [x.clone() for x in inputs], [x.to(DEVICE) for x in inputs]
        want, got = function(*here), compiled(*there)
        for x, y in zip(_tensors([got, there]), _tensors([want, here]), strict=True):
            assert x.device.type == DEVICE
            torch.testing.assert_close(x.cpu(), y, rtol=1e-5, atol=1e-5)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (tuple, list)) else []


_library = torch.library.Library("compiler_test", "DEF")
_library.define("opaque(Tensor x) -> Tensor")
_library.define("halves(Tensor x) -> (Tensor, Tensor)")
_library.define("double_(Tensor(a!) x) -> ()")
_library.impl("opaque", lambda x: x * 3 + 1, "CompositeExplicitAutograd")
_library.impl("halves", lambda x: (x * 0.5, x * 2), "CompositeExplicitAutograd")
_library.impl("double_", lambda x: [x.mul_(2)].clear(), "CompositeExplicitAutograd")
torch.library.register_fake("compiler_test::opaque", torch.empty_like, lib=_library)
torch.library.register_fake("compiler_test::halves", lambda x: (torch.empty_like(x), torch.empty_like(x)), lib=_library)
torch.library.register_fake("compiler_test::double_", lambda x: None, lib=_library)
custom = torch.ops.compiler_test


@pytest.mark.parametrize(
    ("function", "name"),
    (
        (lambda x: custom.opaque(x + 1).relu() * x, "opaque"),
        (lambda x: custom.opaque(x), "opaque"),
        (lambda x: custom.opaque(custom.opaque(x - 1) * 2) + x.sum(), "opaque"),
        (lambda x: (custom.halves(x * 2)[1] + 1, x.exp().sum()), "halves"),
        (lambda x: [t.sum(0) for t in custom.halves(x)], "halves"),
        (lambda x: (custom.double_(x), x + 1)[1], "double_"),
        (lambda x: (x.add_(1), custom.opaque(x), x.mul_(2))[1] - x, "opaque"),
        (lambda x: torch.where(custom.opaque(x) > 4, x, x.split(2, 1)[0].sum()), "opaque"),
    ),
)
def test_an_op_without_a_kernel_runs_between_plans(
    function: Callable[..., Any], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    check(function, X)
    found = reasons(caplog)
    assert found and all(name in r and "runs eagerly (" in r for r in found)
    assert len(found) <= 2, "said once for each graph and op, not at each call"


def test_the_parts_around_it_are_plans() -> None:
    first = len(backend.compiled)
    made: list[Any] = []
    original = executor.CompiledGraph._plan

    def spy(self: Any, metas: Any) -> Any:
        result = original(self, metas)
        made.append([d.name for d in self.plans[-1].dispatches])
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor.CompiledGraph, "_plan", spy)
        check(lambda x: custom.opaque((x + 1).relu() * 2).exp() - 1, X, calls=3)
    assert len(backend.compiled) == first + 1
    assert made == [["add+relu+mul.Tensor"], ["exp+sub"]]


def test_it_may_lie_in_the_backward_pass(caplog: pytest.LogCaptureFixture) -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return custom.opaque(x * x) * grads[0]  # type: ignore[no-any-return]

    def f(x: torch.Tensor) -> torch.Tensor:
        return Cube.apply(x * 2).sin().sum()  # type: ignore[no-any-return]

    grads = []
    for device in ("cpu", DEVICE):
        x = (X / 12).to(device).detach().requires_grad_()
        (f if device == "cpu" else torch.compile(f, backend="webgpu"))(x).backward()
        assert x.grad is not None
        grads.append(x.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-4)
    assert any("opaque" in r for r in reasons(caplog))


def test_ops_that_need_the_host(caplog: pytest.LogCaptureFixture) -> None:
    """Where a mask is written, how many elements it has decides."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x + 1
        z[z > 5] = y[0, 0]
        x[x < 2] = -1.0
        return z * 2

    check(f, X, torch.full((1, 1), 7.0))
    assert all("runs eagerly" in r for r in reasons(caplog))


@pytest.mark.parametrize(
    ("function", "place", "reason"),
    (
        (lambda x: x.zero_(), lambda b: b[:1].expand(3, 4), "more than one element of the written-to tensor"),
        (lambda x: x.unfold(1, 1, 3).add_(1), lambda b: b, "a write through unfold, whose last window"),
        (lambda x, y: (x.relu_(), y.t().neg_())[1], lambda b: (b[:2], b[1:]), "views of inputs that overlap are returned"),
    ),
)
def test_graphs_that_cannot_be_traced(
    function: Callable[..., Any], place: Callable[..., Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = X.clone(), X.to(DEVICE)
    arguments = [a if isinstance(a, tuple) else (a,) for a in (place(here), place(there))]
    want, got = function(*arguments[0]), torch.compile(function, backend="webgpu")(*arguments[1])
    assert torch.equal(there.cpu(), here) and torch.equal(got.cpu(), want)
    (found,) = reasons(caplog)
    assert "a graph of" in found and "runs eagerly" in found and reason in found


def test_calls_that_the_graph_was_not_made_for(caplog: pytest.LogCaptureFixture) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y

    compiled = torch.compile(f, backend="webgpu")
    here, there = torch.arange(8.0), torch.arange(8.0, device=DEVICE)
    for first, second in ((slice(0, 4), slice(4, 8)), (slice(0, 4), slice(2, 6)), (slice(0, 4), slice(4, 8))):
        want = f(here[first], here[second])
        assert torch.equal(compiled(there[first], there[second]).cpu(), want) and torch.equal(there.cpu(), here)
    assert reasons(caplog) == ["inputs overlap otherwise than at compilation: this call runs eagerly"]


@pytest.mark.parametrize("error", (ValueError("a bug in a pass"), LimitError("too large for a binding")))
def test_plans_that_cannot_be_made(
    error: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong while a plan is made: the graph runs op by op, from its source."""

    def broken(*args: Any) -> Any:
        raise error

    monkeypatch.setattr(executor, "assemble", broken)
    check(lambda x: (x.add_(1), F.silu(x @ x.t()).sum(0))[1], X)
    (found,) = reasons(caplog)
    assert "runs op by op" in found and str(error) in found


def test_passes_that_fail(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise KeyError("a bug in a pattern")

    monkeypatch.setattr(backend, "rewrite", broken)
    check(lambda x: x.relu() + 1, X)
    (found,) = reasons(caplog)
    assert "runs eagerly" in found and "a bug in a pattern" in found


def test_graph_breaks_are_dynamos() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        if y.sum() > 100:
            y = y - 1
        return y[y > 3].sum() + y.nonzero().shape[0]

    check(f, X)
    assert torch._dynamo.utils.counters["graph_break"], "TORCH_LOGS=graph_breaks shows them"


def test_errors_of_the_program_stay_errors() -> None:
    with pytest.raises(RuntimeError, match=r"size=\(3, 3\)"):
        torch.compile(lambda x: x + x[:, :3], backend="webgpu")(X.to(DEVICE))
    with pytest.raises(IndexError, match=r"out of (range|bounds)"):
        torch.compile(lambda x, i: x[i] * 2, backend="webgpu")(X.to(DEVICE), torch.tensor([7], device=DEVICE)).cpu()
    with pytest.raises(Exception, match="option"):
        torch.compile(lambda x: x + 1, backend="webgpu", options={"unknown": 1})(X.to(DEVICE))


@pytest.mark.once
def test_torch_logs_show_the_reasons() -> None:
    code = """
    import torch
    f = torch.compile(lambda x: torch.linalg.svdvals(x.relu()).sum(), backend="webgpu")
    print(f(torch.eye(3, device="webgpu")).item())
    """
    shown = run_python(code, TORCH_LOGS="+torch_webgpu.compiler")
    assert shown.code == 0 and shown.out.strip() == "3.0"
    assert "runs eagerly (no lowering for these arguments)" in shown.err and "1 dispatches" in shown.err
    default = run_python(code, TORCH_LOGS=None)
    assert "runs eagerly (no lowering for these arguments)" in default.err and "dispatches" not in default.err
