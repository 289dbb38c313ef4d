"""The passes on lowered steps, in order."""

from __future__ import annotations

from dataclasses import replace

from .fusion import fuse_pointwise
from .fusion_linear import fuse_epilogues, fuse_norms, merge_siblings
from .ir import DeferredGraph, Kernel, Module, Pointwise


def fuse(module: Module, level: str) -> Module:
    """All passes of a fusion level (``TORCH_WEBGPU_FUSION``)."""
    if level != "none":
        module = fuse_pointwise(module)
    if level == "full":
        module = fuse_epilogues(fuse_norms(module))
        module = merge_siblings(module)
    return expand(module)


def expand(module: Module) -> Module:
    """Structured steps that may need temporaries of their own as the launches they are."""
    graph = DeferredGraph()
    graph.created = module.created
    for step in module.steps:
        if isinstance(step, (Pointwise, Kernel)):
            graph.collected.append(step)
        else:
            graph.op = step.name
            step.launch(graph)
    return replace(module, steps=graph.collected, may_fail=module.may_fail or graph.may_fail)
