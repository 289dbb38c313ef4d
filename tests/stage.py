"""Which of the suite's runs this is: see ``make test``."""

from __future__ import annotations

import os

STAGE = "/".join(os.environ.get(f"TORCH_WEBGPU_{name}", "") for name in ("IMPL", "LIMITS"))
LIMITED = os.environ.get("TORCH_WEBGPU_LIMITS") == "default"


def steps(count: int, limited: int) -> int:
    """How often to repeat a step whose launches are the same each time: ``limited`` times under the smallest limits.

    What the limits change is which kernels a launch takes; how long a text gets is looked at by the other runs.
    """
    return limited if LIMITED else count
