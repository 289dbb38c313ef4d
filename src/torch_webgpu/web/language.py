"""``export_llm``: a causal language model as a bundle: prompts in pieces, a decode step, and sampling, all on the device."""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..errors import ExportError
from ..llm.generator import check_model, end_tokens, positions, uncollected
from ..llm.sampling import candidates, draw, likeliest
from . import bundle
from .build import Storages, described
from .capture import Capture
from .exporter import on_device, parameters
from .shards import LIMIT
from .write import VARIANTS, Bundler, Extras, Progress, check_folder, targets

Weights = Literal["f32", "f16", "int8", "int4"]

CONTEXT = 1024  # tokens of the cache, unless the model has fewer positions
PROMPTS = (16, 128)  # tokens that a prompt plan takes; each is traced on its own, which is faster than once for all sizes
MOST_TOP_K = 128
CHECK_SENTENCE = "The capital of France is"
CHECK_TOKENS = 8
CLEAR_LEAD = 0.5  # of a token's logit over the next one's: more than precision changes
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def export_llm(
    model: Any,
    folder: str | Path,
    *,
    tokenizer: Any = None,
    dtype: Weights | None = None,
    context: int | None = None,
    prompts: Sequence[int] = PROMPTS,
    name: str | None = None,
    limits: dict[str, int] | None = None,
    variants: Sequence[Sequence[str]] = VARIANTS,
    rasteriser: bool = False,
    shard_bytes: int = LIMIT,
    about: dict[str, str] | None = None,
    progress: Progress | None = None,
) -> bundle.Bundle:
    """Exports a causal language model with its tokenizer. The bundle's ``language`` says how its plans play together.

    Args:
        model: a name on the Hugging Face hub, a folder, or a GGUF file; None is SmolLM2-135M-Instruct; or a model, of which
            a copy is exported where it is not on the device as it shall be.
        folder: made, or replaced where it holds a bundle.
        tokenizer: of a model that is handed over as such; without one the bundle takes and gives tokens.
        dtype: of weights and activations, or how linear layers and the embedding are quantised (``llm.quant``), activations
            and cache being float32; None leaves a model as it is, and loads one as ``f32``.
        context: tokens that the cache holds, prompt included; None is 1024, or all positions of a model with fewer.
        prompts: tokens that prompt plans take; the rest of a prompt is padded to the next one. Those beyond the context are
            left out.
        name: of the bundle.
        limits, variants, rasteriser, shard_bytes, about: as ``export``.
        progress: told of what is done, and the share of all that is done before it.

    Raises:
        ExportError: as ``export``; also for a wrong context or prompt size, and a model that is none.
        ModelError: where there is no such model.
        ValueError: for a wrong dtype, or a model that is no decoder with attention alone.
    """
    if dtype is not None and dtype not in get_args(Weights):
        raise ValueError(f"dtype must be one of {', '.join(get_args(Weights))}, not {dtype!r}")
    folder = Path(folder)
    check_folder(folder)
    towards = targets(limits, variants, rasteriser)
    tell = progress or (lambda *_: None)
    tell("loading", 0.0)
    source = "" if isinstance(model, nn.Module) else "SmolLM2-135M-Instruct" if model is None else str(model)
    if isinstance(model, nn.Module):
        model = _converted(model, dtype)
    else:
        model, tokenizer = _loaded(model, dtype or "f32")
    check_model(model)
    size = _context(model, context)
    steps = Steps(model, size)
    title = name or Path(source).stem or type(model).__name__
    bundler = Bundler(towards, lambda: parameters(model), steps.state | steps.caches)
    sizes = _prompts(prompts, size)
    with uncollected():
        _capture(steps, sizes, bundler, lambda program: Capture(program, towards, title), tell)
    files, template = _tokenizer(tokenizer)
    facts = {"architecture": type(model).__name__, "dtype": dtype or str(model.dtype).removeprefix("torch.")}
    facts |= {"source": source} if source else {}
    tell("what the model says", 0.83)
    check = _check(model, tokenizer, size)

    def language(storages: Storages) -> bundle.Language:
        return bundle.Language(
            length=size,
            vocabulary=steps.vocabulary,
            prompts=sizes,
            sampling={choice: f"sample-{choice}" for choice in get_args(bundle.Choice)},
            top_k=steps.most,
            state={what: described(what, storages.number(t), t) for what, t in steps.state.items()},  # type: ignore[misc]
            cache=[storages.number(t) for t in steps.caches.values()],
            ends=sorted(_ends(model, tokenizer, steps.vocabulary)),
            files=list(files),
            template=template,
            defaults=_defaults(model),
            check=check,
        )

    extras = Extras(files=files, about=facts | (about or {}), language=language)
    return bundler.write(
        folder, title, extras, shard=shard_bytes, progress=lambda text, share: tell(text, 0.85 + 0.15 * share)
    )


def _capture(steps: Steps, sizes: list[int], bundler: Bundler, capture: Callable[[Any], Capture], tell: Progress) -> None:
    """Captures all plans: one for the step, one for each size of prompts, one for each way to choose."""
    tell("decode step", 0.1)
    bundler.add("decode", capture(steps.decode)((), {}))
    for i, size in enumerate(sizes):
        tell(f"prompts of {size} tokens", 0.35 + 0.4 * i / len(sizes))
        ids = torch.zeros((1, size), dtype=torch.int64, device="webgpu")
        inputs = {"ids": ids, "size": torch.ones(1, dtype=torch.int64, device="webgpu")}
        bundler.add(f"prompt-{size}", capture(steps.prompt)((), inputs), inputs)
    tell("sampling", 0.8)
    for choice in get_args(bundle.Choice):
        bundler.add(f"sample-{choice}", capture(getattr(steps, choice.replace("-", "_")))((), {}))


class Steps:
    """The programs that a language model's plans are made of, over one cache and one state.

    Attributes:
        state: see ``bundle.Language``.
        caches: keys and values by name.
        most: tokens that ``top_k`` looks at.
    """

    def __init__(self, model: Any, length: int) -> None:
        from ..llm.cache import DecodeCache  # which needs transformers

        self.model = model
        self.vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
        self.most = min(MOST_TOP_K, self.vocabulary)
        self.cache = DecodeCache(model.config, length, 1, model.dtype, "webgpu")
        names = inspect.signature(type(model).forward).parameters  # transformers renamed it in version 5
        self._with_cache = {"cache" if "cache" in names else "past_key_values": self.cache}
        zeros = lambda *shape, dtype=torch.int64: torch.zeros(shape, dtype=dtype, device="webgpu")  # noqa: E731
        self.token, self.tokens, self.count = zeros(1, 1), zeros(length), zeros(1)
        self.logits = zeros(1, self.vocabulary, dtype=torch.float32)
        self.temperature_is = zeros(1, dtype=torch.float32) + 1
        self.top_p_is = zeros(1, dtype=torch.float32) + 1
        self.top_k_is = zeros(1, dtype=torch.int32) + self.most

    @property
    def state(self) -> dict[str, Tensor]:
        return {
            "token": self.token, "tokens": self.tokens, "count": self.count, "position": self.cache.position,
            "logits": self.logits, "temperature": self.temperature_is, "top_k": self.top_k_is, "top_p": self.top_p_is,
        }  # fmt: skip

    @property
    def caches(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for i, (keys, values) in enumerate(self.cache.slots()):
            found |= {f"cache.{i}.keys": keys, f"cache.{i}.values": values}
        return found

    def decode(self) -> None:
        """One token further: ``token`` into the cache, ``logits`` of the next one."""
        logits = self.model(input_ids=self.token, use_cache=True, **self._with_cache).logits
        self.logits.copy_(logits[:, -1])

    def prompt(self, ids: Tensor, size: Tensor) -> None:
        """A piece of a prompt, padded at its end: what is padding comes after all that is read, and is overwritten later."""
        logits = self.model(input_ids=ids, use_cache=True, logits_to_keep=size - 1, **self._with_cache).logits
        self.cache.position.add_(size[0] - ids.shape[1])  # the cache has counted the padding too
        self.logits.copy_(logits[:, -1])

    def greedy(self) -> None:
        """The likeliest token."""
        self._keep(likeliest(self.logits))

    def temperature(self) -> None:
        """A token drawn from all."""
        self._keep(draw(*candidates(self.logits, None, False), self.temperature_is))

    def top_p(self) -> None:
        """A token drawn from those that reach a probability."""
        self._keep(draw(*candidates(self.logits, None, True), self.temperature_is, self.top_p_is))

    def top_k(self) -> None:
        """A token drawn from the likeliest ones, and among them from those that reach a probability."""
        self._keep(draw(*candidates(self.logits, self.most, True), self.temperature_is, self.top_p_is, self.top_k_is))

    def _keep(self, token: Tensor) -> None:
        self.tokens.index_copy_(0, self.count, token)
        self.count.add_(1)
        self.token.copy_(token[None])


def _loaded(name: str | Path | None, dtype: Weights) -> tuple[Any, Any]:
    from ..llm import load

    quantised = dtype if dtype in ("int8", "int4") else None
    floats = torch.float16 if dtype == "f16" else torch.float32
    return load(None if name is None else str(name), floats, "webgpu", quantised)  # type: ignore[arg-type]


def _converted(model: nn.Module, dtype: Weights | None) -> Any:
    """The model, or a copy of it, on the device and in a dtype."""
    import copy

    from ..llm.quant import quantise

    if not hasattr(model, "config") or not hasattr(model, "generation_config"):
        raise ExportError(f"{type(model).__name__} is no language model of transformers; use export for other modules")
    if model.training:
        raise ExportError(f"{type(model).__name__} is in training mode; call .eval() first")
    if dtype is not None:
        model = copy.deepcopy(model)
        model = nn.Module.to(model, torch.float16 if dtype == "f16" else torch.float32)
        if dtype == "int8" or dtype == "int4":
            quantise(model, dtype)
    return on_device(model)


def _context(model: Any, context: int | None) -> int:
    limit = positions(model)
    if context is None:
        return min(CONTEXT, limit or CONTEXT)
    if context < 2 or (limit is not None and context > limit):
        raise ExportError(f"a context of {context} tokens: between 2 and {limit or 'any number of'} are possible")
    return context


def _prompts(prompts: Sequence[int], context: int) -> list[int]:
    if not prompts or min(prompts) < 2:
        raise ExportError(f"prompt plans take 2 tokens at least, not {list(prompts)}")
    fitting = sorted({n for n in prompts if n <= context})
    return fitting or [context]


def _tokenizer(tokenizer: Any) -> tuple[dict[str, bytes], str | None]:
    """The tokenizer's files, and its chat template."""
    if tokenizer is None:
        return {}, None
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        missing = [file for file in _TOKENIZER_FILES if not (Path(folder) / file).is_file()]
        if missing:
            raise ExportError(f"{type(tokenizer).__name__} has no {missing[0]}; load it with use_fast=True")
        files = {file: (Path(folder) / file).read_bytes() for file in _TOKENIZER_FILES}
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    config = json.loads(files["tokenizer_config.json"])
    config.pop("chat_template", None)  # it lies in bundle.json
    files["tokenizer_config.json"] = json.dumps(config, ensure_ascii=False, indent=1).encode()
    return files, template


@torch.no_grad()
def _check(model: Any, tokenizer: Any, context: int) -> bundle.Check | None:
    """What the model says on this device after a sentence, as far as each choice is clear; None where the first is not."""
    if tokenizer is None:
        return None
    prompt = [int(t) for t in tokenizer(CHECK_SENTENCE).input_ids][:context]
    tokens: list[int] = []
    while len(tokens) < CHECK_TOKENS and len(prompt) + len(tokens) <= context:
        ids = torch.tensor([prompt + tokens], device="webgpu")
        best = model(input_ids=ids, use_cache=False).logits[0, -1].float().topk(2)
        first, second = best.values.tolist()
        if not first - second >= CLEAR_LEAD:
            break
        tokens.append(int(best.indices[0]))
    return bundle.Check(prompt=prompt, tokens=tokens) if tokens else None


def _ends(model: Any, tokenizer: Any, vocabulary: int) -> set[int]:
    last = getattr(tokenizer, "eos_token_id", None)
    return {t for t in {*end_tokens(model), *([] if last is None else [last])} if t < vocabulary}


def _defaults(model: Any) -> dict[str, float]:
    """What the model's makers recommend for drawing."""
    config = model.generation_config
    if not getattr(config, "do_sample", False):
        return {}
    found = {key: getattr(config, key, None) for key in ("temperature", "top_k", "top_p")}
    return {key: float(value) for key, value in found.items() if value}
