"""Tensors larger than a storage binding may cover."""

from __future__ import annotations

import os
from pathlib import Path

from child import output_of


def test_ops_are_cut_where_a_binding_is_too_small() -> None:
    here = Path(__file__).parent
    code = """
        import lowered_limit
        lowered_limit.lower_the_limit()
        lowered_limit.check([])
        lowered_limit.check_random()
        print("ok")
    """
    path = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    assert output_of(code, PYTHONPATH=path, TORCH_WEBGPU_LIMITS="default") == "ok"
