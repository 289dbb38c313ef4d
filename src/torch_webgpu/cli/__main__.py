"""``python -m torch_webgpu.cli``: the same as ``torch-webgpu``, by the interpreter at hand."""

from . import app

app(prog_name="torch-webgpu")
