"""Models that stay on the CPU, compiled: computed on the device, handed back on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from modelling import case, close, fresh, graphs, small_cnn  # noqa: F401
from torch import Tensor, nn


def test_cpu_model_gives_cpu_results_and_uploads_parameters_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = case("cnn")
    compiled = torch.compile(model, backend="webgpu")
    with torch.no_grad():
        got = compiled(**inputs)
    assert got.device.type == "cpu"
    close(got, model(**inputs), 1e-5)
    graphs(1)
    assert all(p.device.type == "cpu" for p in model.parameters())
    moved: list[torch.Size] = []
    original = Tensor.to

    def counted(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        moved.append(self.shape)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Tensor, "to", counted)
    with torch.no_grad():
        compiled(**inputs)
    parameters = [p.shape for p in model.parameters()]
    assert torch.Size([2, 3, 33, 33]) in moved
    assert not [s for s in moved if s in parameters and len(s) > 1]


@pytest.mark.parametrize("write", ["counted", "data", "replaced"])
def test_cpu_model_sees_new_parameters(write: str) -> None:
    model = nn.Linear(4, 3)
    compiled = torch.compile(model, backend="webgpu")
    x = torch.randn(2, 4)
    for i in range(3):
        with torch.no_grad():
            close(compiled(x), model(x), 1e-5)
            if write == "counted":
                model.weight.mul_(1.5 + i)
            elif write == "data":
                model.weight.data.mul_(1.5 + i)
            else:
                model.weight.data = model.weight * (1.5 + i)
    graphs(1)


def test_cpu_model_trains_and_keeps_its_statistics() -> None:
    torch.manual_seed(0)
    model = small_cnn().train()
    reference = copy.deepcopy(model)
    compiled = torch.compile(model, backend="webgpu")
    both: list[tuple[Any, Any]] = [
        (compiled, torch.optim.SGD(model.parameters(), 0.1)),
        (reference, torch.optim.SGD(reference.parameters(), 0.1)),
    ]
    for _ in range(3):
        x, y = torch.randn(4, 3, 33, 33), torch.randint(0, 10, (4,))
        losses = []
        for net, optimizer in both:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    for (name, expected), got in zip(reference.state_dict().items(), model.state_dict().values(), strict=True):
        assert got.device.type == "cpu"
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4, msg=name)
    graphs()


def test_cpu_inputs_written_in_place_and_returned() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x.add_(y)
        return x, torch.arange(3) + torch.ones(3, device="cpu"), (x * y).cpu()

    x, y = torch.randn(2, 3), torch.randn(2, 3)
    mine = x.clone()
    got = torch.compile(f, backend="webgpu")(mine, y)
    expected = f(x, y)
    assert got[0] is mine
    for a, b in zip(got, expected, strict=True):
        assert a.device.type == "cpu"
        close(a, b, 1e-6)


def test_overlapping_cpu_inputs_behave_as_eager() -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(2)
        return a + b

    compiled = torch.compile(f, backend="webgpu")
    base = torch.ones(8)
    compiled(torch.ones(4), torch.ones(4))
    assert compiled(base[:4], base[2:6]).tolist() == [4, 4, 3, 3]


def test_dtypes_that_the_device_lacks_are_named() -> None:
    with pytest.raises(Exception, match="float64"):
        torch.compile(lambda x: x * 2, backend="webgpu")(torch.ones(3, dtype=torch.float64))
