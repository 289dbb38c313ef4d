"""``python -m torch_webgpu.cli``."""

from . import app

app()
