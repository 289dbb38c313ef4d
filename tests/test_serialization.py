"""Saving, loading, pickling, copying, printing, and storages."""

# torch.webgpu and its like are made at run time.
# mypy: disable-error-code="attr-defined,call-overload,arg-type"
from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from child import NO_DRIVERS, output_of
from test_copy import DTYPES, same_bits, sample


def saved(value: Any) -> io.BytesIO:
    """``value`` through torch.save."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "location, expected", [(None, "webgpu"), ("cpu", "cpu"), ("webgpu:0", "webgpu"), ({"webgpu:0": "cpu"}, "cpu")]
)
def test_save_and_load(dtype: torch.dtype, location: Any, expected: str) -> None:
    x = sample(dtype, 3, 5)
    loaded = torch.load(saved(x.to("webgpu")), map_location=location, weights_only=True)
    assert loaded.device.type == expected
    assert same_bits(loaded, x)


@pytest.mark.parametrize("location", ["webgpu", torch.device("webgpu"), torch.device("webgpu", 0)])
def test_load_a_cpu_file_onto_the_device(location: Any) -> None:
    state = {"a": torch.randn(4, 3), "b": torch.arange(5), "n": 3}
    loaded = torch.load(saved(state), map_location=location, weights_only=True)
    assert loaded["a"].is_webgpu
    assert same_bits(loaded["a"], state["a"])
    assert same_bits(loaded["b"], state["b"])
    assert loaded["n"] == 3


def test_views_stay_views_of_one_storage() -> None:
    base = torch.arange(12.0, device="webgpu").view(3, 4)
    loaded = torch.load(saved([base, base.t()[1:3], base[2]]), weights_only=True)
    assert [t.stride() for t in loaded] == [(4, 1), (1, 4), (1,)]
    assert [t.storage_offset() for t in loaded] == [0, 1, 8]
    loaded[0].fill_(7)
    assert all((t.cpu() == 7).all() for t in loaded)


def test_modules_and_parameters() -> None:
    module = torch.nn.Linear(3, 2).to("webgpu")
    state = torch.load(saved(module.state_dict()), map_location="cpu", weights_only=True)
    other = torch.nn.Linear(3, 2)
    other.load_state_dict(state)
    assert same_bits(other.weight.detach(), module.weight.detach())
    module.load_state_dict({k: v * 2 for k, v in state.items()})  # from the CPU into the device
    assert same_bits(module.bias.detach(), other.bias.detach() * 2)
    twin = copy.deepcopy(module)
    assert twin.weight.is_webgpu
    assert isinstance(twin.weight, torch.nn.Parameter)
    with torch.no_grad():
        twin.weight.zero_()
    assert module.weight.detach().cpu().abs().sum() > 0
    parameter = torch.load(saved(torch.nn.Parameter(torch.ones(2, device="webgpu"))), weights_only=True)
    assert isinstance(parameter, torch.nn.Parameter)
    assert parameter.is_webgpu
    assert parameter.requires_grad


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_deepcopy_and_pickle(clone: Callable[[Any], Any], dtype: torch.dtype) -> None:
    x = sample(dtype, 4, 6)
    device = x.to("webgpu")
    twins = clone([device, device[1:3], device.t()])
    assert [same_bits(t, w) for t, w in zip(twins, [x, x[1:3], x.t()], strict=True)] == [True] * 3
    assert all(t.is_webgpu for t in twins)
    twins[0].zero_()
    assert twins[1].cpu().any() != (clone is copy.deepcopy)  # only deepcopy keeps views together, as on the CPU
    assert same_bits(device, x)
    assert same_bits(clone(torch.empty(0, 3, dtype=dtype, device="webgpu")), torch.empty(0, 3, dtype=dtype))


@pytest.mark.once
def test_a_saved_file_loads_without_the_device(tmp_path: Any) -> None:
    torch.save(torch.arange(3.0, device="webgpu"), tmp_path / "x.pt")
    code = f"import torch; print(torch.load({str(tmp_path / 'x.pt')!r}, map_location='cpu', weights_only=True).tolist())"
    assert output_of(code, TORCH_WEBGPU_ADAPTER=None, **NO_DRIVERS) == "[0.0, 1.0, 2.0]"


@pytest.mark.parametrize("dtype", DTYPES)
def test_repr(dtype: torch.dtype) -> None:
    shown = [
        sample(dtype, 3, 4),
        sample(dtype, 2000),
        sample(dtype),
        sample(dtype, 0),
        sample(dtype, 2, 0, 3),
        sample(dtype, 5)[::2],
    ]
    if dtype.is_floating_point:
        shown.append(torch.tensor([1.5, float("nan"), float("inf"), -float("inf"), 1e-5, -0.0], dtype=dtype))
        shown.append(torch.randn(40, 40).to(dtype))
    for x in shown:
        text = "".join(repr(x.to("webgpu")).split())
        assert ",device='webgpu:0'" in text
        assert text.replace(",device='webgpu:0'", "") == "".join(repr(x).split())


def test_repr_of_parameters_and_scalars() -> None:
    p = torch.nn.Parameter(torch.ones(2, device="webgpu"))
    assert repr(p) == "Parameter containing:\ntensor([1., 1.], device='webgpu:0', requires_grad=True)"
    assert f"{torch.tensor(2.5, device='webgpu'):.2f}" == "2.50"
    assert str(torch.tensor(3, device="webgpu").item()) == "3"
    assert "webgpu" in repr(torch.device("webgpu"))


def test_untyped_storages() -> None:
    x = torch.arange(6.0, device="webgpu")
    storage = x.untyped_storage()
    assert storage.nbytes() == 24
    assert storage.device == torch.device("webgpu:0")
    assert storage.is_webgpu
    assert storage.cpu().tolist() == x.cpu().untyped_storage().tolist()
    assert storage.clone().data_ptr() != storage.data_ptr()
    assert torch.ones(3).untyped_storage().webgpu().cpu().tolist() == torch.ones(3).untyped_storage().tolist()
    storage.resize_(40)
    assert storage.nbytes() == 40
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(24)
    x.copy_(torch.ones(6))
    assert x.tolist() == [1] * 6
    storage.copy_(torch.arange(6.0).untyped_storage())
    assert x.tolist() == [0, 1, 2, 3, 4, 5]


def test_storage_sharing() -> None:
    x = torch.zeros(4, 6, device="webgpu")
    views = [x[1], x.t(), x.view(-1)[3:], x.unfold(1, 2, 2), x[:, ::2], x.expand(2, 4, 6), x.detach(), x.diagonal()]
    assert all(v.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for v in views)
    x.fill_(3)
    assert all((v.cpu() == 3).all() for v in views)
    assert x.view(torch.int32).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert x.view(torch.int32)[0, 0].item() == 0x40400000
    assert x.clone().untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_set() -> None:
    x = torch.arange(6.0, device="webgpu")
    new = lambda: torch.empty(0, device="webgpu")  # noqa: E731
    assert new().set_(x).tolist() == [0, 1, 2, 3, 4, 5]
    assert new().set_(x.untyped_storage()).tolist() == [0, 1, 2, 3, 4, 5]
    assert new().set_(x.untyped_storage(), 1, (2, 2)).tolist() == [[1, 2], [3, 4]]
    assert new().set_(x.untyped_storage(), 1, (2, 2), (1, 2)).tolist() == [[1, 3], [2, 4]]
    assert x.clone().set_().shape == (0,)
    y = new().set_(x.untyped_storage(), 4, (4,))  # past the end: the storage grows, as on the CPU
    assert y[:2].tolist() == [4, 5]
    assert x.untyped_storage().nbytes() == 32
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    for bad in (torch.ones(3), torch.ones(3).untyped_storage(), x.long()):
        with pytest.raises(RuntimeError):
            new().set_(bad)
    with pytest.raises(RuntimeError, match="offset"):
        new().set_(x.untyped_storage(), -1, (2,))
    x.data = torch.ones(2, device="webgpu")
    assert x.tolist() == [1, 1]


def test_resize() -> None:
    x = torch.arange(6.0, device="webgpu")
    assert x.resize_(2, 2).tolist() == [[0, 1], [2, 3]]
    assert x.resize_(9).tolist()[:6] == [0, 1, 2, 3, 4, 5]
    assert x.resize_(0).tolist() == []
    assert x.resize_(2, 3, 2, 2, memory_format=torch.channels_last).stride() == (12, 1, 6, 3)
    assert torch.empty(0, device="webgpu").resize_as_(torch.ones(2, 3, device="webgpu")).shape == (2, 3)


def test_zero_size_tensors() -> None:
    for shape in [(0,), (3, 0), (0, 2, 4)]:
        x = torch.empty(shape, device="webgpu")
        assert x.tolist() == torch.empty(shape).tolist()
        assert (x + 1).shape == shape
        assert x.clone().copy_(torch.empty(shape)).cpu().shape == shape
        assert x.fill_(2).to(torch.int64).shape == shape
        assert x.untyped_storage().nbytes() == 0
