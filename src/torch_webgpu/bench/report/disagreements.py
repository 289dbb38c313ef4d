"""What the paper's figures disagree about, answered out of the files at hand, or with the command that would answer."""

from __future__ import annotations

from collections.abc import Callable

from ..names import DISPATCHES, ENERGY, HOST, SEQUENTIAL, UNWAITED
from ..results import Results
from ..stats import compared
from . import fusion, lines, models
from .document import Answer, Chapter, Estimate, number, p_value

#: What measures that which a file may lack.
DISPATCH = "torch-webgpu bench dispatch --out results"
FUSION = "torch-webgpu bench fusion --out results"
LLM = "torch-webgpu bench llm --out results"
POWER = "torch-webgpu bench power --out results"
BROWSER = "torch-webgpu bench browser --out results"


def chapter(results: Results) -> Chapter:
    """All eight."""
    chapter = Chapter(
        "disagreements",
        "Where the paper disagrees with itself",
        "Eight places where the figures of arXiv 2604.02344 do not agree with each other, each answered by what these files "
        "measured, computed when this page was made. Where they lack what it takes, the command that measures it "
        "stands there.",
    )
    chapter.blocks += [answer(results) for answer in ANSWERS]
    return chapter


def answered(results: Results) -> int:
    """How many of them the files answer."""
    return sum(bool(answer(results).verdict) for answer in ANSWERS)


def _wait(results: Results) -> Answer:
    claim = "The twentyfold gap between naive and sequential is the wait"
    in_paper = (
        "“Naive” includes a wait for Dawn (20.9×), Chrome (46 to 101×) and Safari (7.8×), but not for wgpu-native, whose "
        "single-op figures therefore equal the sequential ones."
    )
    found = []
    for c in lines.costs(results):
        naive, sequential, unwaited = c.naive, c.of(SEQUENTIAL), _unwaited(c)
        if naive is None or sequential is None or unwaited is None or c.ratio is None:
            continue
        found.append(
            f"{results.label(c.source)}: waited {naive.text}, unwaited {unwaited.text}, sequential slope {sequential.text}: "
            f"{number(naive.value / sequential.value)}× with the wait ({number(c.ratio.low)} to {number(c.ratio.high)}), "
            f"{number(unwaited.value / sequential.value)}× without."
        )
    verdict = "The same kernel with and without the wait in the timer, on each target:" if found else ""
    return Answer(1, claim, in_paper, verdict, found, "" if found else DISPATCH)


def _unwaited(c: lines.Costs) -> Estimate | None:
    sweep = c.by_method.get(UNWAITED)
    if sweep is None:
        return None
    metric = HOST if HOST in sweep.by_n else next(iter(sweep.by_n))
    n = sweep.near(1, metric)
    return sweep.quotient(n, metric) if n else None


def _tick(results: Results) -> Answer:
    claim = "Firefox’s 1 ms a dispatch is an intercept"
    in_paper = "About 1037 µs a dispatch is one tick of about 104 ms divided by 100 dispatches."
    found, seen, idle = [], False, lines.idle_waits(results)
    for c in lines.costs(results):
        sweep = c.by_method.get(SEQUENTIAL)
        slope, intercept = (sweep.slope(), sweep.intercept()) if sweep else (None, None)
        n = sweep.near(100) if sweep else None
        quotient = sweep.quotient(n) if sweep and n else None
        if slope is None or intercept is None or quotient is None or quotient.value <= 0:
            continue
        seen |= c.source.target.kind == "browser"
        share = 100 * intercept.value / (quotient.value * (n or 1))
        alone = Estimate.of(idle[c.source].samples, "us") if c.source in idle else None
        floor = f" An idle queue’s wait alone takes {alone.text}." if alone else ""
        found.append(
            f"{results.label(c.source)}: {number(quotient.value)} µs by the quotient at n = {n}; slope {slope.text} "
            f"({slope.detail}), intercept {intercept.text}: {share:.0f} % of the quotient is the wait.{floor}"
        )
    verdict = ""
    if found:
        verdict = "n was varied, so the line takes the two apart:" if seen else "On the targets here (none is a browser):"
    more = DISPATCH if not found else "" if seen else BROWSER
    return Answer(2, claim, in_paper, verdict, found, more)


def _marginal(results: Results) -> Answer:
    claim = "“About 95 µs an operation” is a marginal figure, above the average"
    in_paper = (
        "42.7 ms / 564 = 75.7 µs and 71.4 ms / 876 = 81.5 µs on average; (71.4 − 42.7) ms / 312 = 91.8 µs for each dispatch "
        "saved (0.5B), 100.4 µs (1.5B)."
    )
    found = []
    for unfused, fused in _pairs(results):
        a, b, da, db = _ms(unfused), _ms(fused), _count(unfused), _count(fused)
        if a is None or b is None or not da or not db or da == db:
            continue
        found.append(
            f"{results.label(fused.source)}, {fused.workload}: {number(1e3 * a / da)} µs on average at {da} dispatches, "
            f"{number(1e3 * b / db)} µs at {db}; each of the {da - db} saved was worth "
            f"{number(1e3 * (a - b) / (da - db))} µs."
        )
    verdict = "Average and marginal cost of a dispatch in whole models, from the same runs:" if found else ""
    return Answer(3, claim, in_paper, verdict, found, "" if found else LLM)


def _pairs(results: Results) -> list[tuple[models.Variant, models.Variant]]:
    """Variants that differ in the level of fusion alone: none and full."""
    found = [v for v in models.variants(results, "llm") if v.source.target.kind != "cuda"]
    pairs = []
    for a in found:
        for b in found:
            rest_a, rest_b = ({k: x for k, x in v.setting if k != "fusion"} for v in (a, b))
            same = (a.source, a.workload, a.method, rest_a) == (b.source, b.workload, b.method, rest_b)
            if same and a.value("fusion") == "none" and b.value("fusion") == "full":
                pairs.append((a, b))
    return pairs


def _ms(v: models.Variant) -> float | None:
    """Of a token."""
    token, rate = v.estimate("token"), v.estimate("rate")
    if token is not None:
        return token.value * {"us": 1e-3, "ms": 1, "s": 1e3}.get(token.unit, 1)
    return 1e3 / rate.value if rate is not None and rate.value else None


def _count(v: models.Variant) -> int | None:
    e = v.estimate(DISPATCHES)
    return round(e.value) if e else None


def _cuda(results: Results) -> Answer:
    claim = "“11 to 12 % of CUDA” sets float32 against float16"
    in_paper = "WebGPU ran in float32, the CUDA figure is of float16; in the same dtype it is about 15.8 %."
    found, every = [], models.variants(results, "llm")
    for v in models.best(every):
        rival, e = models.beside(v, every), v.estimate("rate")
        r = rival.estimate("rate") if rival else None
        if e is None or r is None or rival is None:
            continue
        low, high = 100 * e.low / r.high, 100 * e.high / r.low
        found.append(
            f"{v.workload}, {v.value('dtype')} on both, {results.label(v.source)}: {e.text} against {r.text} "
            f"({rival.method}): {100 * e.value / r.value:.0f} % ({low:.0f} to {high:.0f} %)."
        )
    verdict = "Same model, dtype, prompt and machine:" if found else ""
    return Answer(4, claim, in_paper, verdict, found, "" if found else LLM)


def _gain(results: Results) -> Answer:
    claim = "“53 % by fusion” compares runs of different lengths"
    in_paper = "Unfused: 10 runs of 32 tokens; fused: 30 of 50. The stored means give 1.55× (0.5B) and 1.72× (1.5B)."
    found = []
    for unfused, fused in _pairs(results):
        if "rate" not in unfused.metrics or "rate" not in fused.metrics:
            continue
        c = compared(fused.metrics["rate"].samples, unfused.metrics["rate"].samples)
        if c is None:
            continue
        n = len(fused.metrics["rate"].samples), len(unfused.metrics["rate"].samples)
        found.append(
            f"{results.label(fused.source)}, {fused.workload}: {number(c.ratio)}× ({number(c.ratio_ci.low)} to "
            f"{number(c.ratio_ci.high)}), medians {number(c.median_ratio)}×, Welch p {p_value(c.p)}, n = {n[0]} and {n[1]}."
        )
    verdict = "The same prompt and length at both levels, same run:" if found else ""
    return Answer(5, claim, in_paper, verdict, found, "" if found else LLM)


def _fused(results: Results, number_: int, claim: str, in_paper: str, verdict: str, workload: str) -> Answer:
    """An answer from all variants of one computation."""
    found = []
    for g in fusion.groups(results):
        if g.workload != workload or dict(g.mode).get("calls", 1) != 1:
            continue
        for variant in g.times:
            c, base = g.compared(variant), g.baseline(variant)
            if c is None or base is None:
                continue
            counts = f"{g.dispatches.get(base, '?')} → {g.dispatches.get(variant, '?')} dispatches"
            reversed_ = ", reversed by outliers" if (c.ratio - 1) * (c.median_ratio - 1) < 0 else ""
            found.append(
                f"{results.label(g.source)}, {g.title}, submits {dict(g.mode).get('submits', 'one a call')}: {base} → "
                f"{variant} "
                f"({counts}): {number(c.ratio)}× by the means ({number(c.ratio_ci.low)} to {number(c.ratio_ci.high)}), "
                f"{number(c.median_ratio)}× by the medians{reversed_}, Welch p {p_value(c.p)}."
            )
    return Answer(
        number_,
        claim,
        in_paper,
        verdict if found else "",
        found,
        "" if found else FUSION,
    )


def _rms_norm(results: Results) -> Answer:
    return _fused(
        results,
        6,
        "The unfused RMSNorm sums 256 of 896 elements",
        "The stored shader leaves out most of the row, and its five passes share one submit; three runs on one "
        "GPU give 1.16×, "
        "1.41× and 1.88×.",
        "Every variant sums all elements (checked against float64 before timing), with its dispatches in one "
        "submit and apart:",
        "rms_norm",
    )


def _argmax(results: Results) -> Answer:
    return _fused(
        results,
        7,
        "The gain of a device-side argmax comes from outliers",
        "71 % and 88 % by the means hang on one cold sample; the medians of one file are reversed (0.0523 against "
        "0.0630 ms).",
        "Means and medians of both, warm-up kept apart and outliers kept in:",
        "argmax",
    )


def _power(results: Results) -> Answer:
    claim = "Energy is per synthetic forward, not per token"
    in_paper = "1.003 J is of 200 dispatches that are no model; by the stored power it would be 5.85 J a token."
    every = models.variants(results, "power")
    found = [f"{results.label(v.source)}, {v.workload}, {v.how}: {models.energy(v)}." for v in every if ENERGY in v.metrics]
    why = [f"{results.label(v.source)}: no energy measured. {' '.join(v.notes)}" for v in models.without_energy(every)]
    command = "" if found else POWER
    return Answer(8, claim, in_paper, "Of whole decodes, idle power subtracted:" if found else "", found or why, command)


ANSWERS: tuple[Callable[[Results], Answer], ...] = (_wait, _tick, _marginal, _cuda, _gain, _rms_norm, _argmax, _power)
