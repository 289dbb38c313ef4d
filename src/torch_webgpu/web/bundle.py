"""What a bundle is: the schema of ``bundle.json`` and of the plans of its variants.

A folder with ``bundle.json``, one file of plans a variant, WGSL and safetensors. Every other file is listed in
``bundle.json`` with its size and SHA-256. All offsets and sizes are bytes.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..errors import ExportError

FORMAT = "torch-webgpu-bundle"
VERSION = 1  # a runtime takes bundles of its own version alone
MANIFEST = "bundle.json"

Natural = Annotated[int, Field(ge=0)]
Word = Annotated[int, Field(ge=0, lt=1 << 32)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
DTypeName = Literal["float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
Choice = Literal["greedy", "temperature", "top-p", "top-k"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class File(_Model):
    """A file of the bundle."""

    size: Natural
    sha256: Digest


class Segment(_Model):
    """Bytes of a file that go to ``at`` in a buffer."""

    file: str
    offset: Natural
    size: Natural
    at: Natural


class Buffer(_Model):
    """A buffer that outlives a plan: weights, state, an input. What no segment covers is zero at first."""

    name: str
    size: Natural
    role: Literal["weight", "state", "input"]
    data: list[Segment] = []


class Tensor(_Model):
    """A tensor in a buffer; strides and offset in elements."""

    name: str
    buffer: Natural
    dtype: DTypeName
    shape: list[Natural]
    strides: list[Natural]
    offset: Natural = 0


class Pipeline(_Model):
    """A compute pipeline with entry point ``main``: storage bindings from 0 on, then a uniform of ``uniform`` bytes."""

    name: str
    wgsl: str
    written: list[bool]
    uniform: Natural


class Random(_Model):
    """Four uniform words from ``word`` on: seed and counter, of which the dispatch uses up ``count``."""

    word: Natural
    count: Natural


class Dispatch(_Model):
    """One launch: ``bindings`` are [buffer, offset, size]; ``words`` begin the uniform, the rest of it is zero."""

    name: str
    pipeline: Natural
    groups: tuple[Natural, Natural, Natural]
    bindings: list[tuple[Natural, Natural, Natural]]
    words: list[Word]
    random: list[Random] = []


class Plan(_Model):
    """What one call replays, in order."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    dispatches: list[Dispatch]


class Plans(_Model):
    """A variant's file: pipelines, plans by name, and ``scratch`` buffers (numbered after the bundle's buffers)."""

    pipelines: list[Pipeline]
    scratch: list[Natural]
    error: Natural | None
    plans: dict[str, Plan]

    @model_validator(mode="after")
    def _consistent(self) -> Plans:
        for name, plan in self.plans.items():
            for dispatch in plan.dispatches:
                pipeline = self.pipelines[dispatch.pipeline] if dispatch.pipeline < len(self.pipelines) else None
                if pipeline is None or len(pipeline.written) != len(dispatch.bindings):
                    raise ValueError(f"{name}: {dispatch.name} has no pipeline with these bindings")
                if 4 * len(dispatch.words) > pipeline.uniform:
                    raise ValueError(f"{name}: {dispatch.name} has more words than its uniform")
        return self


class Variant(_Model):
    """Kernels for devices with some features: the first variant that a device can run is run.

    Attributes:
        limits: what it needs beyond the specification's defaults.
        subgroups: the smallest subgroup that its kernels are right for; 0 where they use none.
        memory: bytes of all buffers.
    """

    name: str
    features: list[str]
    limits: dict[str, Natural]
    subgroups: Natural
    memory: Natural
    plans: str


class Message(_Model):
    """What a kernel reports under an id."""

    kind: str
    message: str


class Check(_Model):
    """What the model said when it was exported: the likeliest ``tokens`` after ``prompt``, each by a clear lead."""

    prompt: Annotated[list[Natural], Field(min_length=1)]
    tokens: Annotated[list[Natural], Field(min_length=1)]


class Language(_Model):
    """How a language model's plans and state play together.

    The plan ``prompt-N`` takes ``ids`` [1, N] int64 and ``size`` [1] int64: the first ``size`` of them are tokens, the rest
    is padding. It appends the tokens to the cache, at ``position``, moves that on by ``size``, and leaves ``logits`` of the
    last token. ``decode`` does so with the one in ``token``. A plan of ``sampling`` then chooses from ``logits``, and leaves
    its choice in ``token`` and in ``tokens`` at ``count``, which it moves on by one. So a text is: zeros to ``position`` and
    ``count``, the prompt in pieces, a choice; then ``decode`` and a choice again and again. ``prompt-N`` needs ``position``
    + N ≤ ``length``; where no N fits, the rest of the prompt goes token by token through ``token`` and ``decode``. After an
    error of a plan the cache may hold NaN: the buffers of ``cache`` must be zeroed.

    Attributes:
        length: tokens that the cache holds.
        prompts: sizes of the prompt plans, ascending.
        sampling: plans that choose: ``greedy``; ``temperature`` draws with ``temperature`` alone; ``top-p`` also looks at
            ``top_p``; ``top-k`` at ``top_k`` and ``top_p``.
        top_k: the most that ``top_k`` may be.
        state: tensors by what they are: ``token``, ``tokens``, ``count``, ``position``, ``logits``, ``temperature``,
            ``top_k``, ``top_p``. Their names are those of the buffers.
        cache: buffers with keys and values.
        ends: tokens that end a text.
        files: ``tokenizer.json`` and ``tokenizer_config.json``.
        template: a chat template (Jinja).
        defaults: of ``temperature``, ``top_k``, ``top_p``, where the model's makers recommend any.
        check: for pages to see whether a browser computes rightly.
    """

    length: Natural
    vocabulary: Natural
    prompts: list[Natural]
    sampling: dict[Choice, str]
    top_k: Natural
    state: dict[Literal["token", "tokens", "count", "position", "logits", "temperature", "top_k", "top_p"], Tensor]
    cache: list[Natural]
    ends: list[Natural]
    files: list[str]
    template: str | None = None
    defaults: dict[str, float] = {}
    check: Check | None = None


class Image(_Model):
    """How a picture becomes the input of an image classifier, and what its outputs are.

    The picture is scaled (bicubic) so that its shorter side has ``resize`` pixels, its middle of ``size`` by ``size`` is cut
    out; RGB values between 0 and 1 less ``mean``, divided by ``deviation``, are the input [1, 3, size, size].

    Attributes:
        output: its scores, [1, classes]; softmax makes probabilities of them.
        labels: a file, a JSON list with a name for each class.
    """

    input: str
    output: str
    resize: Natural
    size: Natural
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    labels: str


class Bundle(_Model):
    """``bundle.json``."""

    format: Literal["torch-webgpu-bundle"] = "torch-webgpu-bundle"
    version: Literal[1] = 1
    name: str
    producer: dict[str, str]
    files: dict[str, File]
    buffers: list[Buffer]
    variants: list[Variant]
    messages: dict[int, Message] = {}
    language: Language | None = None
    image: Image | None = None
    about: dict[str, str] = {}

    @model_validator(mode="after")
    def _complete(self) -> Bundle:
        wanted = {segment.file for buffer in self.buffers for segment in buffer.data}
        wanted |= {variant.plans for variant in self.variants}
        wanted |= set(self.language.files) if self.language else set()
        wanted |= {self.image.labels} if self.image else set()
        missing = sorted(wanted - self.files.keys())
        if missing:
            raise ValueError(f"files that are not listed: {', '.join(missing)}")
        for buffer in self.buffers:
            for s in buffer.data:
                if s.offset + s.size > self.files[s.file].size or s.at + s.size > buffer.size or s.at % 4:
                    raise ValueError(f"{buffer.name}: a segment of {s.file} lies outside of the file or the buffer")
        return self


def text_digest(text: str) -> str:
    """SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest(path: Path) -> File:
    """A file as it is listed."""
    total = hashlib.sha256()
    with path.open("rb") as f:
        while piece := f.read(1 << 20):
            total.update(piece)
    return File(size=path.stat().st_size, sha256=total.hexdigest())


def read(folder: Path | str) -> Bundle:
    """The bundle in a folder, all files of it checked.

    Raises:
        ExportError: naming the first thing that is wrong.
    """
    folder = Path(folder)
    try:
        bundle = Bundle.model_validate_json((folder / MANIFEST).read_text())
        for name, expected in bundle.files.items():
            if digest(folder / name) != expected:
                raise ExportError(f"{folder / name} is damaged: its size or SHA-256 is not what {MANIFEST} says")
        for variant in bundle.variants:
            Plans.model_validate(json.loads((folder / variant.plans).read_text()))
    except (OSError, ValidationError) as e:
        raise ExportError(f"{folder} holds no bundle of this version: {e}") from e
    return bundle
