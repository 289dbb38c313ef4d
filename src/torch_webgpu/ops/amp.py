"""What ``torch.amp.GradScaler`` does to gradients and to its scale, without a wait for the device."""

from __future__ import annotations

import torch

_aten = torch.library.Library("aten", "IMPL")


def _unscale_(grads: list[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor) -> None:
    """Multiplies each gradient by ``inv_scale`` and sets ``found_inf`` to 1 where one has an infinity or a NaN."""
    for name, t in (("found_inf", found_inf), ("inv_scale", inv_scale)):
        if t.numel() != 1 or t.dtype is not torch.float32:
            raise RuntimeError(f"{name} must be one float32 number, got {t.dtype}{list(t.shape)}")
    if not grads:
        return
    finite = torch.stack([g.isfinite().all() for g in grads]).all()
    found_inf.masked_fill_(~finite, 1.0)
    factor = inv_scale.reshape(())
    for g in grads:
        g.mul_(factor)


def _update_scale_(
    scale: torch.Tensor,
    growth_tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
) -> torch.Tensor:
    """Shrinks the scale after an infinity, grows it after ``growth_interval`` steps without one, if it stays finite."""
    bad = found_inf.reshape(scale.shape) != 0
    steps = growth_tracker + 1
    due = steps == growth_interval
    grown = scale * growth_factor
    kept = torch.where(due & grown.isfinite(), grown, scale)
    growth_tracker.copy_(torch.where(bad | due, torch.zeros_like(steps), steps))
    return scale.copy_(torch.where(bad, scale * backoff_factor, kept))


_aten.impl("_amp_foreach_non_finite_check_and_unscale_", _unscale_, "PrivateUse1")
_aten.impl("_amp_update_scale_", _update_scale_, "PrivateUse1")
