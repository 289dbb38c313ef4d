"""A bundle's plans run through the ``wgpu`` package alone, as a browser runs them: none of torch_webgpu's device is used."""

from __future__ import annotations

import json
import struct
from functools import cache
from pathlib import Path
from typing import Any

import torch
import wgpu
from torch import Tensor

from torch_webgpu.web import bundle

SLOT = 256  # bytes to which the offsets of uniforms are aligned
_BUFFER = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
_ADAPTER_FEATURES = {"subgroups": "subgroup"}  # as the package calls them
_DTYPES = {name: getattr(torch, name) for name in bundle.DTypeName.__args__}  # type: ignore[attr-defined]


@cache
def _device(features: tuple[str, ...], limits: tuple[tuple[str, int], ...]) -> Any:
    """A device with the specification's default limits, and what a variant says that it needs beyond them."""
    adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    return adapter.request_device_sync(
        required_features=[_ADAPTER_FEATURES[f] for f in features],
        required_limits={_spelled(name): value for name, value in limits},
    )


def _spelled(limit: str) -> str:
    """``maxBufferSize`` as the package has it: ``max-buffer-size``."""
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in limit)


class Replayer:
    """A variant of a bundle, loaded."""

    def __init__(self, folder: Path, variant: str = "base") -> None:
        self.bundle = bundle.read(folder)
        about = next(v for v in self.bundle.variants if v.name == variant)
        self._device = _device(tuple(about.features), tuple(sorted(about.limits.items())))
        self._plans = bundle.Plans.model_validate(json.loads((folder / about.plans).read_text()))
        sizes = [b.size for b in self.bundle.buffers] + self._plans.scratch
        self._buffers = [self._device.create_buffer(size=size, usage=_BUFFER) for size in sizes]
        for number, buffer in enumerate(self.bundle.buffers):
            for segment in buffer.data:
                with (folder / segment.file).open("rb") as f:
                    f.seek(segment.offset)
                    self._device.queue.write_buffer(self._buffers[number], segment.at, f.read(segment.size))
        self._pipelines = [self._pipeline(folder, p) for p in self._plans.pipelines]
        self._launches: dict[str, tuple[Any, list[Any]]] = {}
        self.seed, self.offset = 0, 0  # of random numbers

    @property
    def plans(self) -> dict[str, bundle.Plan]:
        return self._plans.plans

    def _pipeline(self, folder: Path, pipeline: bundle.Pipeline) -> tuple[Any, Any]:
        kinds = ["storage" if w else "read-only-storage" for w in pipeline.written]
        entries: list[dict[str, Any]] = [
            {"binding": i, "visibility": 4, "buffer": {"type": kind, "min_binding_size": 16}} for i, kind in enumerate(kinds)
        ]
        uniform = {"type": "uniform", "min_binding_size": pipeline.uniform}
        entries.append({"binding": len(kinds), "visibility": 4, "buffer": uniform})
        layout = self._device.create_bind_group_layout(entries=entries)
        code = (folder / pipeline.wgsl).read_text().removeprefix("enable subgroups;\n")  # which naga does without
        made = self._device.create_compute_pipeline(
            layout=self._device.create_pipeline_layout(bind_group_layouts=[layout]),
            compute={"module": self._device.create_shader_module(code=code), "entry_point": "main"},
        )
        return made, layout

    def _prepared(self, name: str) -> tuple[Any, list[Any]]:
        """The plan's uniform buffer, and for each dispatch pipeline, bind group, groups and its uniform's place."""
        if name in self._launches:
            return self._launches[name]
        plan, places, total = self.plans[name], [], 0
        for d in plan.dispatches:
            places.append(total)
            total += self._plans.pipelines[d.pipeline].uniform
        usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
        words = self._device.create_buffer(size=max(total, SLOT), usage=usage)
        launches = []
        for d, place in zip(plan.dispatches, places, strict=True):
            pipeline, layout = self._pipelines[d.pipeline]
            self._device.queue.write_buffer(words, place, struct.pack(f"<{len(d.words)}I", *d.words) or bytes(4))
            bound = [(self._buffers[b], offset, size) for b, offset, size in d.bindings]
            bound.append((words, place, self._plans.pipelines[d.pipeline].uniform))
            entries = [
                {"binding": i, "resource": {"buffer": b, "offset": o, "size": s}} for i, (b, o, s) in enumerate(bound)
            ]
            group = self._device.create_bind_group(layout=layout, entries=entries)
            launches.append((pipeline, group, d.groups, place))
        self._launches[name] = words, launches
        return self._launches[name]

    def run(self, name: str = "run", **inputs: Tensor) -> dict[str, Tensor]:
        """Replays a plan; its results by name.

        Raises:
            RuntimeError: what a kernel reports.
        """
        plan = self.plans[name]
        assert set(inputs) == {t.name for t in plan.inputs}
        for t in plan.inputs:
            assert list(inputs[t.name].shape) == t.shape and inputs[t.name].dtype is _DTYPES[t.dtype]
            self.write(t, inputs[t.name])
        words, launches = self._prepared(name)
        for d, (*_, place) in zip(plan.dispatches, launches, strict=True):
            for draw in d.random:
                self._device.queue.write_buffer(words, place + 4 * draw.word, struct.pack("<QQ", self.seed, self.offset))
                self.offset += draw.count
        encoder = self._device.create_command_encoder()
        work = encoder.begin_compute_pass()
        for pipeline, group, groups, _ in launches:
            work.set_pipeline(pipeline)
            work.set_bind_group(0, group)
            work.dispatch_workgroups(*groups)
        work.end()
        self._device.queue.submit([encoder.finish()])
        self._check()
        return {t.name: self.read(t) for t in plan.outputs}

    def _check(self) -> None:
        if self._plans.error is None:
            return
        buffer = self._buffers[self._plans.error]
        number, low, high, size = struct.unpack("<4I", self._device.queue.read_buffer(buffer, 0, 16))
        if number:
            self._device.queue.write_buffer(buffer, 0, bytes(16))
            value = struct.unpack("<q", struct.pack("<2I", low, high))[0]
            message = self.bundle.messages[number].message
            raise RuntimeError(message.replace("{value}", str(value)).replace("{size}", str(size)))

    def write(self, t: bundle.Tensor, value: Tensor) -> None:
        """Writes a contiguous tensor of the bundle."""
        data = bytes(value.contiguous().reshape(-1).view(torch.uint8).numpy())
        at = t.offset * value.itemsize
        assert at % 4 == 0
        self._device.queue.write_buffer(self._buffers[t.buffer], at, data + bytes(-len(data) % 4))

    def read(self, t: bundle.Tensor) -> Tensor:
        """A tensor of the bundle, as its strides have it."""
        data = bytearray(self._device.queue.read_buffer(self._buffers[t.buffer]))
        whole = torch.frombuffer(data, dtype=_DTYPES[t.dtype])
        return torch.as_strided(whole, t.shape, t.strides, t.offset).clone()

    def buffer(self, name: str) -> bytes:
        """All bytes of a buffer that has this name."""
        number = next(i for i, b in enumerate(self.bundle.buffers) if b.name == name)
        return bytes(self._device.queue.read_buffer(self._buffers[number]))


def fill(replayer: Replayer, ids: list[int]) -> None:
    """A prompt from an empty cache, in pieces, as the bundle's ``language`` says."""
    language = replayer.bundle.language
    assert language is not None
    replayer.write(language.state["position"], torch.tensor(0))
    replayer.write(language.state["count"], torch.tensor([0]))
    at = 0
    while at < len(ids):
        fitting = [n for n in language.prompts if at + n <= language.length]
        size = next((n for n in fitting if n >= len(ids) - at), fitting[-1] if fitting else 0)
        piece = ids[at : at + max(size, 1)]
        if size:
            padded = torch.tensor([piece + [0] * (size - len(piece))])
            replayer.run(f"prompt-{size}", ids=padded, size=torch.tensor([len(piece)]))
        else:
            replayer.write(language.state["token"], torch.tensor([piece]))
            replayer.run("decode")
        at += len(piece)


def generate(replayer: Replayer, ids: list[int], count: int, choice: bundle.Choice = "greedy") -> list[int]:
    """Continues a prompt by so many tokens."""
    language = replayer.bundle.language
    assert language is not None
    fill(replayer, ids)
    replayer.run(language.sampling[choice])
    for _ in range(count - 1):
        replayer.run("decode")
        replayer.run(language.sampling[choice])
    return [int(t) for t in replayer.read(language.state["tokens"])[:count]]
