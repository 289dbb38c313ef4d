"""``torch.compile(model, backend="webgpu")``, and ``explain``, which shows what a model becomes."""

from .explanation import Explanation, GraphPlan, explain

__all__ = ["Explanation", "GraphPlan", "explain"]
