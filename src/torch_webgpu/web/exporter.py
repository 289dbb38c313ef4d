"""``export``: a module or function of tensors as a bundle for browsers."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import ExportError
from . import bundle
from .capture import MOST_SIZES, Capture
from .shards import LIMIT
from .write import VARIANTS, Bundler, Extras, check_folder, targets

Dynamic = Mapping[str, Mapping[int, Sequence[int]]]


def export(
    program: Callable[..., Any],
    example_inputs: Sequence[Any] | Mapping[str, Any] | torch.Tensor,
    folder: str | Path,
    *,
    dynamic: Dynamic | None = None,
    name: str | None = None,
    limits: dict[str, int] | None = None,
    variants: Sequence[Sequence[str]] = VARIANTS,
    rasteriser: bool = False,
    shard_bytes: int = LIMIT,
    about: dict[str, str] | None = None,
    extras: Extras | None = None,
) -> bundle.Bundle:
    """Exports a program's plan: ``bundle.json``, WGSL and safetensors, for the JavaScript runtime beside it.

    The program is traced as ``torch.compile(backend="webgpu")`` does, without gradients; nothing of it runs here. Kernels
    are chosen for the limits and features of the target, not of this machine.

    Args:
        program: a module in evaluation mode (compiled or not, on any device: a copy of it is moved), or a function of
            tensors.
        example_inputs: positional arguments as a tuple, or keywords as a dictionary: tensors of the shapes and dtypes that
            the bundle takes, and constants.
        folder: made, or replaced where it holds a bundle.
        dynamic: sizes that dimensions may have, by input and dimension: ``{"ids": {1: (16, 64)}}``. The bundle holds a plan
            for each; the n-th sizes of several dimensions go together. The example's own size is not added.
        limits: what the target grants beyond the specification's defaults (``{"maxBufferSize": 1 << 30}``).
        variants: features of each variant; a browser runs the first that its adapter has the features for.
        rasteriser: kernels are shaped for WebGPU on a CPU (SwiftShader, lavapipe).
        shard_bytes: of a safetensors file, at most 128 MiB.
        about: further facts, kept in the bundle.
        extras: further files and descriptions; ``about`` is theirs then.

    Raises:
        ExportError: for what no plan can hold (the op is named), tensors beyond the target's limits, results that are no
            tensors, and a folder that holds something else.
        ValueError: for a wrong ``dynamic``.
    """
    check_folder(Path(folder))
    program = _uncompiled(program)
    title = name or (
        type(program).__name__ if isinstance(program, nn.Module) else str(getattr(program, "__name__", "program"))
    )
    if isinstance(program, nn.Module):
        if program.training:
            raise ExportError(f"{title} is in training mode; call .eval() first")
        program = on_device(program)
    given = _named(program, example_inputs)
    towards = targets(limits, variants, rasteriser)
    capture = Capture(program, towards, title)
    bundler = Bundler(towards, lambda: parameters(program))
    for number, (arguments, changing) in enumerate(_sizes(given, dynamic or {})):
        tensors = {n: v for n, v in arguments.items() if isinstance(v, torch.Tensor)}
        call = capture((), arguments, [(tensors[n], dim) for n, dim in changing])
        bundler.add("run" if number == 0 else f"run-{number + 1}", call, tensors)
    return bundler.write(Path(folder), title, extras or Extras(about=about or {}), shard=shard_bytes)


def _uncompiled(program: Callable[..., Any]) -> Callable[..., Any]:
    """What ``torch.compile`` was given."""
    found: Any = program
    for attribute in ("_orig_mod", "_torchdynamo_orig_callable"):
        found = getattr(found, attribute, found)
    return found  # type: ignore[no-any-return]


def on_device(module: nn.Module) -> nn.Module:
    """The module, or a copy of it where it is elsewhere."""
    found = {t.device.type for t in (*module.parameters(), *module.buffers())}
    return module if found <= {"webgpu"} else copy.deepcopy(module).to("webgpu")


def parameters(program: Any) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name; none of a function."""
    if not isinstance(program, nn.Module):
        return {}
    return {**dict(program.named_parameters()), **dict(program.named_buffers())}


def _named(program: Callable[..., Any], example: Any) -> dict[str, Any]:
    """The arguments by name, tensors fresh on the device, each with a storage of its own."""
    if isinstance(example, Mapping):
        arguments = dict(example)
    else:
        given = (example,) if isinstance(example, torch.Tensor) else tuple(example)
        function = program.forward if isinstance(program, nn.Module) else program
        try:
            arguments = dict(inspect.signature(function).bind(*given).arguments)
        except TypeError as e:
            raise ExportError(f"the example inputs are not what the program takes: {e}") from e
    found = {}
    for name, value in arguments.items():
        if isinstance(value, (list, tuple, dict)):
            raise ExportError(f"the input {name} is a {type(value).__name__}; inputs are tensors, or constants")
        if isinstance(value, torch.Tensor):
            value = value.detach().contiguous().clone().to("webgpu")
        found[name] = value
    return found


def _sizes(given: dict[str, Any], dynamic: Dynamic) -> list[tuple[dict[str, Any], list[tuple[str, int]]]]:
    """The arguments of each call, and the dimensions that change between them."""
    changing: list[tuple[str, int]] = []
    columns: list[Sequence[int]] = []
    for name, dims in dynamic.items():
        if not isinstance(given.get(name), torch.Tensor):
            tensors = [n for n, v in given.items() if isinstance(v, torch.Tensor)]
            raise ValueError(f"dynamic: {name!r} is no tensor among the inputs ({', '.join(tensors)})")
        for dim, sizes in dims.items():
            if not 0 <= dim < given[name].dim() or not sizes or min(sizes) < 1:
                raise ValueError(
                    f"dynamic: {name} has {given[name].dim()} dimensions, and sizes are positive: {dim}: {sizes}"
                )
            changing.append((name, dim))
            columns.append(sizes)
    if not columns:
        return [(given, [])]
    if len({len(c) for c in columns}) > 1 or len(columns[0]) > MOST_SIZES:
        raise ValueError(f"dynamic: each dimension needs as many sizes as the others, {MOST_SIZES} at most")
    calls = []
    for row in sorted(set(zip(*columns, strict=True))):
        arguments = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in given.items()}
        shapes = {n: list(v.shape) for n, v in arguments.items() if isinstance(v, torch.Tensor)}
        for (name, dim), size in zip(changing, row, strict=True):
            shapes[name][dim] = size
        for name in {n for n, _ in changing}:
            arguments[name] = torch.zeros(shapes[name], dtype=given[name].dtype, device="webgpu")
        calls.append((arguments, changing))
    return calls
