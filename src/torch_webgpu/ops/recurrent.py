"""Cells of LSTM and GRU, which PyTorch calls as one op on every device but the CPU: elementwise work after two products.

Gates stand side by side in dimension 1, in PyTorch's order (the formulas: torch.nn.LSTMCell, torch.nn.GRUCell).
"""

from __future__ import annotations

import torch

_aten = torch.library.Library("aten", "IMPL")
Optional = torch.Tensor | None


def _sum(gates: torch.Tensor, *biases: Optional) -> torch.Tensor:
    for bias in biases:
        if bias is not None:
            gates = gates + bias
    return gates


def _lstm(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: Optional = None,
    hidden_bias: Optional = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden state, cell state, and the gates for the backward pass."""
    i, f, g, o = _sum(input_gates + hidden_gates, input_bias, hidden_bias).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _lstm_backward(
    grad_hy: Optional, grad_cy: Optional, cx: torch.Tensor, cy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor, torch.Tensor, Optional]:
    """Gradients of the gates, of the cell state before, and of each bias."""
    i, f, g, o = workspace.chunk(4, 1)
    squashed = cy.tanh()
    grad_cell = torch.zeros_like(cy) if grad_cy is None else grad_cy
    grad_o = torch.zeros_like(cy)
    if grad_hy is not None:
        grad_cell = grad_cell + grad_hy * o * (1 - squashed * squashed)
        grad_o = grad_hy * squashed * o * (1 - o)
    grad_i, grad_f = grad_cell * g * i * (1 - i), grad_cell * cx * f * (1 - f)
    gates = torch.cat([grad_i, grad_f, grad_cell * i * (1 - g * g), grad_o], 1)
    return gates, grad_cell * f, gates.sum(0) if has_bias else None


def _gru(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: Optional = None,
    hidden_bias: Optional = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden state, and what the backward pass needs."""
    (ir, iz, given), (hr, hz, kept) = (
        _sum(*t).chunk(3, 1) for t in ((input_gates, input_bias), (hidden_gates, hidden_bias))
    )
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (given + r * kept).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, kept], 1)


def _gru_backward(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Optional, Optional]:
    """Gradients of both gates, of the hidden state before, and of both biases."""
    r, z, n, hx, kept = workspace.chunk(5, 1)
    grad_z = grad_hy * (hx - n) * z * (1 - z)
    grad_n = grad_hy * (1 - z) * (1 - n * n)
    grad_r = grad_n * kept * r * (1 - r)
    given, hidden = torch.cat([grad_r, grad_z, grad_n], 1), torch.cat([grad_r, grad_z, grad_n * r], 1)
    return given, hidden, grad_hy * z, *((given.sum(0), hidden.sum(0)) if has_bias else (None, None))


_aten.impl("_thnn_fused_lstm_cell", _lstm, "PrivateUse1")
_aten.impl("_thnn_fused_lstm_cell_backward_impl", _lstm_backward, "PrivateUse1")
_aten.impl("_thnn_fused_gru_cell", _gru, "PrivateUse1")
_aten.impl("_thnn_fused_gru_cell_backward", _gru_backward, "PrivateUse1")
