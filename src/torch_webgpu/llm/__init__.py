"""Language models on the device: loading and generation with unmodified Hugging Face models."""

from .load import ModelError, load

__all__ = ["ModelError", "load"]
