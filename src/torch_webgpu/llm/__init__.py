"""Language models on the device: loading, quantised weights, generation with unmodified Hugging Face models."""

from .generator import Generator, Sampling
from .load import ModelError, load
from .quant import quantise as quantize
from .text import generate, stream

__all__ = ["Generator", "ModelError", "Sampling", "generate", "load", "quantize", "stream"]
