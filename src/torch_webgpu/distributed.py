"""``torch.distributed`` for webgpu tensors: collectives go through the host by Gloo (csrc/collectives.cpp)."""

from __future__ import annotations

import torch

from . import _C


def register() -> None:
    """Names Gloo as the device's backend, also for ``init_process_group()`` without arguments."""
    if not torch.distributed.is_available():
        return
    backends = torch.distributed.Backend
    backends.default_device_backend_map.setdefault("webgpu", "gloo")
    devices = backends.backend_capability["gloo"]
    if "webgpu" not in devices:
        devices.append("webgpu")
    _C.register_collectives()
