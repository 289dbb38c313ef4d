"""LSTM, GRU and RNN layers, forward and backward."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import torch_webgpu


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_layers(kind: Callable[..., nn.Module], bias: bool) -> None:
    torch.manual_seed(0)
    host = kind(5, 7, num_layers=2, bidirectional=True, batch_first=True, bias=bias)
    ours = copy.deepcopy(host).to("webgpu")
    x = torch.randn(3, 4, 5)
    before = torch_webgpu.fallbacks()
    results, grads = [], []
    for model, device in ((host, "cpu"), (ours, "webgpu")):
        given = x.to(device).detach().clone().requires_grad_()
        out, state = model(given)
        states = state if isinstance(state, tuple) else (state,)
        (out.square().mean() + sum(s.sin().mean() for s in states)).backward()
        results.append([out, *states])
        grads.append([given.grad, *(p.grad for p in model.parameters())])
    assert torch_webgpu.fallbacks() == before
    for got, want in zip(results[1] + grads[1], results[0] + grads[0], strict=True):
        torch.testing.assert_close(got.cpu(), want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(kind: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    host = kind(3, 4)
    ours = copy.deepcopy(host).to("webgpu")
    x = torch.randn(2, 3)
    want, got = host(x), ours(x.to("webgpu"))
    for w, g in zip(*((v if isinstance(v, tuple) else (v,)) for v in (want, got)), strict=True):
        torch.testing.assert_close(g.cpu(), w)
    if kind is nn.LSTMCell:  # the cell's state alone asks for a gradient
        (host_grad,) = torch.autograd.grad(want[1].sum(), list(host.parameters())[:1])
        (grad,) = torch.autograd.grad(got[1].sum(), list(ours.parameters())[:1])
        torch.testing.assert_close(grad.cpu(), host_grad)


def test_packed_sequences() -> None:
    torch.manual_seed(0)
    host = nn.GRU(3, 4)
    ours = copy.deepcopy(host).to("webgpu")
    x = torch.randn(5, 3, 3)
    lengths = torch.tensor([5, 3, 1])
    outputs = []
    for model, device in ((host, "cpu"), (ours, "webgpu")):
        packed = nn.utils.rnn.pack_padded_sequence(x.to(device), lengths)
        outputs.append(nn.utils.rnn.pad_packed_sequence(model(packed)[0])[0])
    torch.testing.assert_close(outputs[1].cpu(), outputs[0], atol=1e-5, rtol=1e-4)
