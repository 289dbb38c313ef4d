"""The environment variables, all of them. Read once, at import of the package."""

from __future__ import annotations

import os
from dataclasses import dataclass


def _choice(name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = os.environ.get(name, default).strip().lower()
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is not one of {', '.join(repr(a) for a in allowed)}")
    return value


@dataclass(frozen=True)
class Config:
    """Settings from the environment.

    Attributes:
        impl: ``TORCH_WEBGPU_IMPL``: ``wgpu`` (wgpu-native, the default where installed) or ``dawn``.
        adapter: ``TORCH_WEBGPU_ADAPTER``: part of an adapter's name, or its index in ``torch-webgpu info``.
        fallback: ``TORCH_WEBGPU_FALLBACK``: ``warn`` (run on the CPU, warn once an op) or ``error``.
        limits: ``TORCH_WEBGPU_LIMITS``: ``adapter`` (all the adapter grants) or ``default`` (the specification's defaults).
        fusion: ``TORCH_WEBGPU_FUSION``: how far the compiler fuses: ``none``, ``pointwise`` or ``full``.
        cache: ``TORCH_WEBGPU_CACHE``: the folder of compiled plans, ``0`` or ``off`` for none, nothing for the user's.
        debug: ``TORCH_WEBGPU_DEBUG``: ``1`` waits for and checks every launch.
    """

    impl: str
    adapter: str
    fallback: str
    limits: str
    fusion: str
    cache: str
    debug: bool

    @staticmethod
    def from_environment() -> Config:
        """Reads the variables; raises ValueError on a value that is not allowed."""
        return Config(
            impl=_choice("TORCH_WEBGPU_IMPL", "auto", ("auto", "wgpu", "dawn")),
            adapter=os.environ.get("TORCH_WEBGPU_ADAPTER", "").strip(),
            fallback=_choice("TORCH_WEBGPU_FALLBACK", "warn", ("warn", "error")),
            limits=_choice("TORCH_WEBGPU_LIMITS", "adapter", ("adapter", "default")),
            fusion=_choice("TORCH_WEBGPU_FUSION", "full", ("full", "pointwise", "none")),
            cache=os.environ.get("TORCH_WEBGPU_CACHE", "").strip(),
            debug=_choice("TORCH_WEBGPU_DEBUG", "0", ("0", "1")) == "1",
        )


config = Config.from_environment()
