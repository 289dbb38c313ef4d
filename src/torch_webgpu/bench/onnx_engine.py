"""A model exported to ONNX with its cache, run by ONNX Runtime on the processor or through its WebGPU."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from .engines import cache_argument

PROVIDERS = {"cpu": "CPUExecutionProvider", "webgpu": "WebGpuExecutionProvider"}
_WHEELS = {"cpu": "onnxruntime", "webgpu": "onnxruntime-webgpu"}


class UnavailableError(RuntimeError):
    """ONNX Runtime, one of its providers, or the exporter is not to be had here; the message says why."""


def check_provider(device: str) -> None:
    """Raises UnavailableError where ONNX Runtime or its provider for ``cpu`` or ``webgpu`` is not installed."""
    wanted = PROVIDERS[device]
    try:
        import onnxruntime
    except ImportError as e:
        raise UnavailableError(f"ONNX Runtime is not installed ({e}); pip install {_WHEELS[device]}") from None
    if wanted not in onnxruntime.get_available_providers():
        have = ", ".join(onnxruntime.get_available_providers())
        raise UnavailableError(
            f"the ONNX Runtime installed here has {have}, no {wanted}; pip install {_WHEELS[device]} in its place"
        )
    try:
        import onnxscript  # noqa: F401 - the exporter needs it
    except ImportError as e:
        raise UnavailableError(f"exporting to ONNX needs onnxscript ({e}); pip install onnxscript onnx") from None


class _Flat(torch.nn.Module):
    """The model with its cache as lists of tensors: keys and values of each layer in turn, [1, heads, S, width]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self._name = model, cache_argument(model)

    def forward(self, ids: torch.Tensor, past: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Logits of the last position, and the cache with the new tokens."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for i in range(len(past) // 2):
            cache.update(past[2 * i], past[2 * i + 1], i)
        out = self.model(input_ids=ids, use_cache=True, logits_to_keep=1, **{self._name: cache})
        layers: list[Any] = list(cache.layers)
        return out.logits, [t for layer in layers for t in (layer.keys, layer.values)]


def export(model: Any, folder: Path) -> Path:
    """Writes ``model.onnx`` with its weights beside it; the number of tokens, past and new, is free."""
    text = model.config.get_text_config(decoder=True)
    past = [torch.zeros(shape) for shape in _cache_shapes(text, 3)]
    free = torch.export.Dim.DYNAMIC
    names = [f"past{i}" for i in range(len(past))]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _Flat(model),
            (torch.tensor([[1, 2, 3, 4]]), past),
            dynamo=True,
            dynamic_shapes=({1: free}, [{2: free} for _ in past]),
            input_names=["ids", *names],
            output_names=["logits", *(f"present{i}" for i in range(len(past)))],
            verbose=False,
        )
    assert program is not None
    path = folder / "model.onnx"
    program.save(str(path), external_data=True)
    return path


def _cache_shapes(text: Any, length: int) -> list[tuple[int, int, int, int]]:
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return [(1, heads, length, width)] * (2 * text.num_hidden_layers)


class OnnxEngine:
    """An exported model in ONNX Runtime. The cache stays where the provider computes, if it can be bound there.

    Attributes:
        notes: what a reader of its figures has to know.
        version: of ONNX Runtime.
    """

    def __init__(self, model: Any, device: str) -> None:
        """
        Args:
            model: on the CPU, float32.
            device: ``cpu`` or ``webgpu``.

        Raises:
            UnavailableError: without ONNX Runtime, its provider, or an adapter that it takes.
        """
        check_provider(device)
        import onnxruntime

        self.version: str = onnxruntime.__version__
        self._onnxruntime, self._shapes = onnxruntime, _cache_shapes(model.config.get_text_config(decoder=True), 0)
        self._folder = tempfile.TemporaryDirectory(prefix="torch-webgpu-onnx-")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        path = export(model, Path(self._folder.name))
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self._session = onnxruntime.InferenceSession(str(path), options, providers=[PROVIDERS[device]])
        except Exception as e:
            raise UnavailableError(f"ONNX Runtime cannot start on {device}: {_first_line(e)}") from None
        taken = self._session.get_providers()[0]
        if taken != PROVIDERS[device]:  # it falls back to the CPU by itself
            raise UnavailableError(f"ONNX Runtime {self.version} found no adapter for {PROVIDERS[device]} and took {taken}")
        self._place = "gpu" if device == "webgpu" else "cpu"
        self._past: list[Any] = []
        self.notes: list[str] = []
        self._token = 0

    def _value(self, tensor: torch.Tensor) -> Any:
        return self._onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy())

    def _run(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits [1, vocabulary] of the last position; the cache grows."""
        binding = self._session.io_binding()
        binding.bind_ortvalue_input("ids", self._value(ids))
        for i, past in enumerate(self._past):
            binding.bind_ortvalue_input(f"past{i}", past)
        binding.bind_output("logits", "cpu")
        for i in range(len(self._past)):
            binding.bind_output(f"present{i}", self._place)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as e:
            if self._place == "cpu":
                raise
            self._place = "cpu"
            self.notes.append(
                f"keys and values pass through host memory at each step, since binding failed: {_first_line(e)}"
            )
            return self._run(ids)
        logits, *self._past = binding.get_outputs()
        return torch.from_numpy(logits.numpy())[:, -1]

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of the last position of a prompt."""
        self._past = [self._value(torch.zeros(shape)) for shape in self._shapes]
        return self._run(ids)

    def prefill(self, ids: torch.Tensor) -> int:
        """See ``engines.Engine``."""
        self._token = int(self.logits(ids).argmax())
        return self._token

    def decode(self, count: int) -> list[int]:
        """See ``engines.Engine``; the choice is the host's, as ONNX Runtime's own examples make it."""
        found = []
        for _ in range(count):
            self._token = int(self._run(torch.tensor([[self._token]])).argmax())
            found.append(self._token)
        return found


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0][:300] if text else type(error).__name__
