"""The compiler: ``torch.compile(model, backend="webgpu")``."""
