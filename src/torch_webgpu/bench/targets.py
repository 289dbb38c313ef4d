"""What can be measured here: adapters of the WebGPU libraries, Dawn's null driver, and PyTorch's own devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .clocks import clocks, nvidia_smi
from .environment import cpu_name
from .schema import Target

if TYPE_CHECKING:
    from ..runtime.base import AdapterInfo

NULL = "dawn-null"


def webgpu_target(adapter: AdapterInfo) -> Target:
    """An adapter of wgpu-native or Dawn, with the version of its wheel."""
    from .. import runtime

    null = adapter.kind == "null"
    kinds: dict[str, Any] = {k: k for k in ("discrete", "integrated", "cpu", "null")}
    return Target(
        kind="webgpu",
        implementation=NULL if null else adapter.implementation,
        version=runtime.implementation(adapter.implementation).wheel_version(),
        adapter=adapter.name,
        adapter_kind=kinds.get(adapter.kind, "unknown"),
        backend=adapter.backend,
        driver=adapter.driver,
        features=adapter.features,
        limits=adapter.limits,
        clocks=clocks(adapter.name, adapter.kind),
    )


def present_target() -> Target:
    """The adapter that webgpu tensors are on; opens it."""
    from .. import runtime

    return webgpu_target(runtime.device().adapter)


def cpu_target() -> Target:
    """PyTorch on the processor."""
    import torch

    return Target(
        kind="cpu",
        implementation="torch",
        version=torch.__version__,
        adapter=cpu_name(),
        adapter_kind="cpu",
        clocks=clocks("", "cpu"),
    )


def cuda_target() -> Target:
    """PyTorch on the present CUDA device."""
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Target(
        kind="cuda",
        implementation="torch",
        version=torch.__version__,
        adapter=properties.name,
        adapter_kind="discrete" if not properties.is_integrated else "integrated",
        backend="CUDA",
        driver=f"CUDA {torch.version.cuda}, NVIDIA {nvidia_smi('driver_version', properties.name) or 'unknown'}",
        limits={"memory": properties.total_memory},
        clocks=clocks(properties.name, "discrete"),
    )


def mps_target() -> Target:
    """PyTorch on Apple's GPU."""
    return cpu_target().model_copy(update={"kind": "mps", "adapter_kind": "integrated", "backend": "Metal"})


def torch_target(device: str) -> Target:
    """The target of ``webgpu``, ``cuda``, ``mps`` or ``cpu``, with its state now; ValueError for what is not here."""
    from .peaks import with_state
    from .places import missing

    if (why := missing(device)) is not None:
        raise ValueError(why)
    made = {"webgpu": present_target, "cuda": cuda_target, "mps": mps_target, "cpu": cpu_target}[device]()
    return with_state(made, device)
