"""The device's random generator: seeds, states, forks."""

# torch.webgpu and its like are made at run time.
# mypy: disable-error-code="attr-defined"
from __future__ import annotations

import pytest
import torch


def test_generator_objects() -> None:
    g = torch.Generator(device="webgpu")
    assert g.device == torch.device("webgpu:0")
    assert g.manual_seed(5) is g
    assert g.initial_seed() == 5
    state = g.get_state()
    assert state.device.type == "cpu"
    assert state.dtype == torch.uint8
    seed = g.seed()
    assert g.initial_seed() == seed != 5
    g.set_state(state)
    assert g.initial_seed() == 5
    assert torch.equal(g.get_state(), state)
    assert torch.equal(g.clone_state().get_state(), state)
    g.set_offset(8)
    assert g.get_offset() == 8
    with pytest.raises(RuntimeError, match="16 bytes"):
        g.set_state(torch.zeros(5, dtype=torch.uint8))
    with pytest.raises(TypeError):
        g.set_state(torch.zeros(16))


def test_default_generator_follows_torch_manual_seed() -> None:
    torch.manual_seed(1234)
    assert torch.webgpu.initial_seed() == 1234
    torch.webgpu.manual_seed(7)
    assert torch.webgpu.initial_seed() == 7
    torch.webgpu.manual_seed_all(8)
    assert torch.webgpu.initial_seed() == 8
    assert torch.initial_seed() == 1234
    assert torch.webgpu.seed() == torch.webgpu.initial_seed()


def test_rng_state_round_trip() -> None:
    torch.webgpu.manual_seed(3)
    state = torch.webgpu.get_rng_state()
    torch.webgpu.manual_seed(4)
    assert not torch.equal(torch.webgpu.get_rng_state(), state)
    torch.webgpu.set_rng_state(state)
    assert torch.webgpu.initial_seed() == 3
    assert torch.equal(torch.webgpu.get_rng_state("webgpu"), state)


def test_fork_rng_restores() -> None:
    torch.manual_seed(11)
    device, host = torch.webgpu.get_rng_state(), torch.get_rng_state()
    with torch.random.fork_rng(device_type="webgpu"):
        torch.manual_seed(99)
        assert torch.webgpu.initial_seed() == 99
    assert torch.equal(torch.webgpu.get_rng_state(), device)
    assert torch.equal(torch.get_rng_state(), host)
    assert torch.webgpu.initial_seed() == 11


def test_draws_depend_on_the_seed_and_the_offset_only() -> None:
    def draw(seed: int) -> list[float]:
        torch.manual_seed(seed)
        x = torch.empty(100, device="webgpu")
        first = x.uniform_().tolist()
        return first + x.uniform_().tolist()

    one = draw(1)
    assert draw(1) == one
    assert draw(2) != one
    assert one[:100] != one[100:]
    assert all(0 <= v < 1 for v in one)
    g = torch.Generator(device="webgpu").manual_seed(1)
    x = torch.empty(100, device="webgpu")
    before = torch.webgpu.get_rng_state()
    assert x.uniform_(generator=g).tolist() == one[:100]
    assert torch.equal(torch.webgpu.get_rng_state(), before)
    state = g.get_state()
    again = x.uniform_(generator=g).tolist()
    g.set_state(state)
    assert x.uniform_(generator=g).tolist() == again == one[100:]
    with pytest.raises(RuntimeError):
        x.uniform_(generator=torch.Generator())


def test_the_same_numbers_on_every_adapter_and_library() -> None:
    torch.manual_seed(0)
    assert torch.rand(4, device="webgpu").tolist() == [
        0.3990464210510254,
        0.8805201649665833,
        0.7357127666473389,
        0.6054818034172058,
    ]
    state = torch.webgpu.get_rng_state()
    assert torch.randperm(5, device="webgpu").tolist() == torch.randperm(5, device="webgpu", generator=_at(state)).tolist()
    bits = torch.randint(0, 2**31, (3,), device="webgpu", generator=_at(state)).tolist()
    assert bits == torch.randint(0, 2**31, (3,), device="webgpu", generator=_at(state)).tolist()


def _at(state: torch.Tensor) -> torch.Generator:
    generator = torch.Generator(device="webgpu")
    generator.set_state(state)
    return generator
