"""From captured calls to a bundle's buffers and plans: dispatches with bindings and words, as a runtime replays them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from .. import recipe, wgsl
from ..errors import ExportError
from ..recipe import PATCH_F32, PATCH_I64, PATCH_RANDOM, REF_ERROR, REF_OUTPUT, REF_TEMP
from ..runtime import DescribedTarget
from ..runtime.base import SPEC_LIMITS
from . import bundle
from .capture import Call

GRANULE = 256  # bytes; buffers are multiples of it, as native ones are
SMALLEST_SUBGROUP = 4
#: What every WebGPU device grants.
DEFAULT_LIMITS = SPEC_LIMITS | {"maxBufferSize": 256 << 20}
_ERROR_BYTES = 256
_LARGEST = (
    "a buffer of the target at most {largest}; export with smaller sizes, a smaller dtype or quantised weights, or for a "
    "target that allows more: limits={{'maxBufferSize': {size}}}"
)


def rounded(size: int) -> int:
    """Bytes of the buffer that holds so many."""
    return max(GRANULE, -(-size // GRANULE) * GRANULE)


@dataclass
class Storage:
    """A storage that plans bind.

    Attributes:
        tensors: what lies in it, by name.
    """

    number: int
    size: int
    role: Literal["weight", "state", "input"] = "weight"
    tensors: list[tuple[str, torch.Tensor]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.tensors[0][0] if len(self.tensors) == 1 else f"{self.tensors[0][0]} … {self.tensors[-1][0]}"


def key_of(t: torch.Tensor) -> int:
    """Equal for tensors of one storage."""
    return int(t.untyped_storage()._cdata)


class Storages:
    """All storages that the plans of a bundle share, numbered as they are met."""

    def __init__(self, named: dict[str, torch.Tensor], state: dict[str, torch.Tensor]) -> None:
        """
        Args:
            named: parameters and buffers, for their names.
            state: what plans share and a runtime looks at or writes.
        """
        self.found: dict[int, Storage] = {}
        self._names = {_place(t): name for name, t in named.items()}
        for name, t in state.items():
            self._add(t, name, "state")

    def add(self, call: Call, inputs: dict[str, torch.Tensor]) -> None:
        """Notes what a call's plans bind.

        Args:
            inputs: of this call, by the names of all calls' inputs.
        """
        here = {key_of(t): name for name, t in inputs.items()}
        tensors = [t for t in call.inputs if isinstance(t, torch.Tensor)]
        names = dict(zip((id(t) for t in call.inputs), call.names, strict=False))
        bound = {b.ref for plan in call.plans for d in plan.dispatches for b in d.bindings if b.ref < REF_OUTPUT}
        bound |= {output[0] for plan in call.plans for output in plan.recipe[0] if 0 <= output[0] < REF_OUTPUT}
        written = {b.ref for plan in call.plans for d in plan.dispatches for b in d.bindings if b.written}
        for ref in sorted(bound):
            t = tensors[ref]
            if key_of(t) in here:
                name = here[key_of(t)]
                if ref in written:
                    raise ExportError(f"the input {name} is written in place; clone it first")
                self._add_input(name, t)
                continue
            name = self._names.get(_place(t)) or names.get(id(t)) or "constant"
            self._add(t, name, "state" if ref in written else "weight")
        for leaf in pytree.tree_leaves(call.result):  # what it hands back as it was
            if isinstance(leaf, torch.Tensor) and key_of(leaf) in here:
                name = here[key_of(leaf)]
                self._add_input(name, inputs[name])
            elif isinstance(leaf, torch.Tensor) and (known := self._names.get(_place(leaf))) is not None:
                self._add(leaf, known, "weight")

    def _add_input(self, name: str, t: torch.Tensor) -> None:
        size = rounded(t.untyped_storage().nbytes())
        known = next((s for s in self.found.values() if s.role == "input" and s.name == name), None)
        if known is None:
            known = Storage(len(self.unique()), size, "input", [(name, t)])
        known.size = max(known.size, size)
        self.found[key_of(t)] = known

    def _add(self, t: torch.Tensor, name: str, role: Literal["weight", "state"]) -> None:
        known = self.found.get(key_of(t))
        if known is None:
            size = rounded(t.untyped_storage().nbytes())
            known = self.found[key_of(t)] = Storage(len(self.unique()), size, role)
        if role == "state":
            known.role = role
        if all(_place(other) != _place(t) for _, other in known.tensors):
            taken = {n for s in self.unique() for n, _ in s.tensors}
            known.tensors.append((name if name not in taken else f"{name}#{len(taken)}", t))

    def unique(self) -> list[Storage]:
        """Each storage once, by number."""
        return sorted({id(s): s for s in self.found.values()}.values(), key=lambda s: s.number)

    def number(self, t: torch.Tensor) -> int:
        """The number of the buffer that a tensor lies in, which some plan binds or is state."""
        return self.found[key_of(t)].number

    def of(self, t: torch.Tensor) -> Storage | None:
        """The storage of a tensor, if a plan binds it."""
        return self.found.get(key_of(t))


def _place(t: torch.Tensor) -> tuple[Any, ...]:
    return key_of(t), t.storage_offset(), tuple(t.shape), tuple(t.stride()), t.dtype


def described(name: str, buffer: int, t: torch.Tensor) -> bundle.Tensor:
    """A tensor as a bundle has it."""
    dtype = wgsl.BY_TORCH.get(t.dtype)
    if dtype is None:
        raise ExportError(f"{name} is {t.dtype}, which WebGPU has not")
    facts = {"dtype": dtype.name, "shape": list(t.shape), "strides": list(t.stride()), "offset": int(t.storage_offset())}
    return bundle.Tensor.model_validate({"name": name, "buffer": buffer, **facts})


class Variant:
    """Plans for one target, in the making."""

    def __init__(self, index: int, target: DescribedTarget, storages: Storages) -> None:
        """
        Args:
            index: of the target among those that calls were captured for.
        """
        self._index, self._target, self._storages = index, target, storages
        self._first = len(storages.unique())
        self._scratch: dict[tuple[str, int], int] = {}  # what it is → its number
        self._sizes: list[int] = []
        self._fails = False
        self.plans: dict[str, bundle.Plan] = {}
        self.largest_binding = 0

    def add(self, name: str, call: Call, inputs: dict[str, torch.Tensor]) -> None:
        """Writes a call's plan down."""
        outputs, arenas, steps, _, _, returned = call.plans[self._index].recipe
        for k, output in enumerate(outputs):
            if output[0] < 0:
                itemsize = wgsl.DTYPES[output[1]].itemsize
                extent = itemsize * (1 + sum((n - 1) * s for n, s in zip(*output[2:4], strict=True)))
                self._check(f"{name}: results of {list(output[2])}", self._room("output", k, extent))
        for k, size in enumerate(arenas):
            self._check(f"{name}: intermediate results", self._room("arena", k, size))
        names = [d.name for d in call.plans[self._index].dispatches]
        self.plans[name] = bundle.Plan(
            inputs=[
                described(n, self._storages.number(t), t) for n, t in inputs.items() if self._storages.of(t) is not None
            ],
            outputs=self._outputs(name, call, outputs, returned),
            dispatches=[self._dispatch(n, step, call) for n, step in zip(names, steps, strict=True)],
        )

    def _room(self, what: str, k: int, size: int) -> int:
        number = self._scratch.setdefault((what, k), len(self._sizes))
        if number == len(self._sizes):
            self._sizes.append(0)
        self._sizes[number] = max(self._sizes[number], rounded(size))
        return self._first + number

    def _check(self, what: str, number: int) -> None:
        """Raises ExportError for a scratch buffer that the target cannot make."""
        size, largest = self._sizes[number - self._first], self._target.limits["maxBufferSize"]
        if size > largest:
            raise ExportError(f"{what} need {size} bytes, {_LARGEST.format(largest=largest, size=size)}")

    def _locate(self, ref: int, call: Call) -> tuple[int, int, int]:
        """Buffer, its size, and the bytes from its start, of what a plan refers to."""
        if ref == REF_ERROR:
            self._fails = True
            return self._room("error", 0, _ERROR_BYTES), _ERROR_BYTES, 0
        if ref >= REF_OUTPUT:
            what, k = ("arena", ref - REF_TEMP) if ref >= REF_TEMP else ("output", ref - REF_OUTPUT)
            number = self._scratch[what, k]
            return self._first + number, self._sizes[number], 0
        tensor = [t for t in call.inputs if isinstance(t, torch.Tensor)][ref]
        storage = self._storages.of(tensor)
        assert storage is not None
        return storage.number, storage.size, int(tensor.storage_offset()) * tensor.itemsize

    def _dispatch(self, name: str, step: Any, call: Call) -> bundle.Dispatch:
        pipeline, operands, words, patches, groups = step
        words = [int(w) & 0xFFFFFFFF for w in words]
        limit = self._target.limits["maxStorageBufferBindingSize"]
        placed = []
        for slot, ref, delta, extent, itemsize in operands:
            buffer, size, start = self._locate(ref, call)
            placed.append((slot, buffer, size, start + delta * itemsize, extent * itemsize))
        bindings: dict[int, tuple[int, int, int]] = {}
        for slot, buffer, size, _, _ in placed:
            ranges = [(low, low + length) for s, _, _, low, length in placed if s == slot]
            start, end = 0, size
            if size > limit:
                start = min(low for low, _ in ranges) // GRANULE * GRANULE
                end = min(rounded(max(high for _, high in ranges)), size)
            if end - start > limit:
                raise ExportError(
                    f"{name}: one launch touches {end - start} bytes of a buffer, the target's bindings cover {limit}; "
                    "split the tensor"
                )
            bindings[slot] = (buffer, start, end - start)
            self.largest_binding = max(self.largest_binding, end - start)
        for i, (operand, (slot, _, _, low, _)) in enumerate(zip(operands, placed, strict=True)):
            words[i] = (low - bindings[slot][1]) // operand[4]
        draws = []
        for at, kind, is_tensor, index, count in patches:
            if kind == PATCH_RANDOM:
                draws.append(bundle.Random(word=at, count=count))
            else:
                words[at : at + (2 if kind == PATCH_I64 else 1)] = _number(kind, call, bool(is_tensor), index)
        while words and not words[-1]:
            words.pop()
        return bundle.Dispatch(
            name=name,
            pipeline=pipeline,
            groups=groups,
            bindings=[bindings[k] for k in sorted(bindings)],
            words=words,
            random=draws,
        )

    def _outputs(self, plan: str, call: Call, outputs: Sequence[Any], returned: Sequence[int]) -> list[bundle.Tensor]:
        buffers: dict[int, int] = {}
        for place, t in zip(returned, call.outputs, strict=True):
            if place >= 0 and outputs[place][0] < 0:
                buffers[key_of(t)] = self._first + self._scratch["output", place]
        for place, t in zip(returned, call.outputs, strict=True):
            if place >= 0 and outputs[place][0] >= 0:
                buffers.setdefault(key_of(t), self._locate(outputs[place][0], call)[0])
        found = []
        leaves, _ = pytree.tree_flatten_with_path(call.result)
        for path, leaf in leaves:
            name = ".".join(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path) or "output"
            if leaf is None:
                continue
            if not isinstance(leaf, torch.Tensor):
                raise ExportError(f"{plan} returns {type(leaf).__name__} as {name}; only tensors can be returned")
            storage = self._storages.of(leaf)
            buffer = buffers.get(key_of(leaf), storage.number if storage is not None else None)
            if buffer is None:
                raise ExportError(f"{plan}: the result {name} is not computed on the device")
            found.append(described(name, buffer, leaf))
        return found

    # ------------------------------------------------------------------------------------------ the whole

    def finish(self, shaders: dict[str, str]) -> bundle.Plans:
        """All plans; the WGSL goes to ``shaders``, file name → text.

        Raises:
            ExportError: for a buffer that the target cannot make.
        """
        largest = self._target.limits["maxBufferSize"]
        for storage in self._storages.unique():
            if storage.size > largest:
                advice = _LARGEST.format(largest=largest, size=storage.size)
                raise ExportError(f"{storage.name} takes {storage.size} bytes, {advice}")
        pipelines = []
        for shader in self._target.shaders:
            code = ("enable subgroups;\n" if wgsl.uses_subgroups(shader.code) else "") + shader.code
            file = f"wgsl/{bundle.text_digest(code)[:16]}.wgsl"
            shaders[file] = code
            pipelines.append(
                bundle.Pipeline(
                    name=shader.name, wgsl=file, written=list(shader.accesses), uniform=shader.uniform_slots * GRANULE
                )
            )
        error = self._first + self._scratch["error", 0] if self._fails else None
        return bundle.Plans(pipelines=pipelines, scratch=self._sizes, error=error, plans=self.plans)

    def about(self) -> bundle.Variant:
        """What ``bundle.json`` says of it; after ``finish``."""
        storages = self._storages.unique()
        buffers = [s.size for s in storages] + self._sizes
        needed = {
            "maxBufferSize": max(buffers),
            "maxStorageBufferBindingSize": self.largest_binding,
            "maxStorageBuffersPerShaderStage": max(len(s.accesses) for s in self._target.shaders),
        }
        base, slots = DEFAULT_LIMITS, [shader.uniform_slots for shader in self._target.shaders]
        compute = {k: v for k, v in self._target.limits.items() if k.startswith("maxCompute") and v > base[k]}
        uses = any(wgsl.uses_subgroups(s.code) for s in self._target.shaders)
        features = [f for f in self._target.features if f != "subgroups" or uses]
        name = "-".join(features) or "base"
        return bundle.Variant(
            name=name,
            features=features,
            limits={k: v for k, v in needed.items() if v > base[k]} | compute,
            subgroups=SMALLEST_SUBGROUP if uses else 0,
            memory=sum(buffers) + GRANULE * sum(slots[d.pipeline] for p in self.plans.values() for d in p.dispatches),
            plans=f"plans-{name}.json",
        )


def _number(kind: int, call: Call, is_tensor: bool, index: int) -> list[int]:
    """The words of a number that native calls may change, as it is in this call."""
    tensors = [t for t in call.inputs if isinstance(t, torch.Tensor)]
    value = tensors[index].item() if is_tensor else call.inputs[index]
    if kind == PATCH_F32:
        return list(struct.unpack("<I", struct.pack("<f", float(value))))
    if kind == PATCH_I64:
        return list(struct.unpack("<II", struct.pack("<q", int(value))))
    return [int(value) & 0xFFFFFFFF]


def messages() -> dict[int, bundle.Message]:
    """What kernels report, by id."""
    known = recipe.known_errors()
    return {recipe.register_error(kind, text): bundle.Message(kind=kind, message=text) for kind, text in known}
