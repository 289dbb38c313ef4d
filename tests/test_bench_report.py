"""The report against files with known truths: figures, intervals, answers, the page itself."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import bench_files as made
import pytest
from typer.testing import CliRunner

from torch_webgpu.bench import names, paper
from torch_webgpu.bench.report import build, disagreements, fusion, lines
from torch_webgpu.bench.report.document import Cell, Estimate, Table, number, quantity
from torch_webgpu.bench.report.render import html, markdown
from torch_webgpu.bench.report.stacks import stacks
from torch_webgpu.bench.results import Results, load
from torch_webgpu.bench.schema import Run
from torch_webgpu.cli import app

pytestmark = pytest.mark.once


def results(*makers: made.Maker, **fields: object) -> Results:
    runs: list[Run] = [make.run(**fields) for make in makers]
    return Results((Path(f"{i}.json"), run) for i, run in enumerate(runs))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files")
    made.everything(path)
    return path


@pytest.fixture(scope="module")
def pages(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    out = tmp_path_factory.mktemp("report")
    paths = build.write(load([folder]), out)
    return paths[0].read_text("utf-8"), paths[1].read_text("utf-8")


def test_numbers_are_written_for_people() -> None:
    assert [number(x) for x in (0, 13.4567, 0.001234, 104_000, -2.5)] == ["0", "13.5", "0.00123", "104\u202f000", "−2.50"]
    assert number(float("nan")) == "–"
    assert [quantity(2.1e9, "bytes"), quantity(5, "us"), quantity(2, "ratio"), quantity(564, "count")] == [
        "1.96 GiB", "5.00 µs", "2.00×", "564",
    ]  # fmt: skip
    one = Estimate.of([3.0], "us")
    assert one.detail == "one sample" and "n = 4" in Estimate.of([1, 2, 3, 4], "us").detail
    with pytest.raises(ValueError, match="2 cells in a table of 3"):
        Table("", ["a", "b", "c"]).add("x", "y")


def test_slope_intercept_naive_and_ratio() -> None:
    found = {c.source.target.implementation: c for c in lines.costs(results(made.dispatch()))}
    assert list(found)[:2] == ["wgpu", "dawn"]
    c = found["wgpu"]
    slope, naive, ratio = c.of(names.SEQUENTIAL), c.naive, c.ratio
    assert slope and naive and ratio
    assert slope.value == pytest.approx(15, rel=0.02) and naive.value == pytest.approx(134, rel=0.02)
    assert slope.low < slope.value < slope.high and slope.n == 120
    assert ratio.value == pytest.approx(134 / 15, rel=0.03) and ratio.low < ratio.value < ratio.high
    intercept = c.by_method[names.SEQUENTIAL].intercept()
    assert intercept and intercept.value == pytest.approx(90, rel=0.05)
    host = c.of(names.SEQUENTIAL, names.HOST)
    assert host and host.value == pytest.approx(15 * 0.93, rel=0.02)
    tick = found["firefox"].by_method[names.SEQUENTIAL]
    slope, quotient = tick.slope(), tick.quotient(100)
    assert slope and quotient and slope.value == pytest.approx(200, rel=0.15) and quotient.value > 1000


def test_what_varies_is_kept_apart_from_the_plain_cost() -> None:
    found = lines.sweeps(results(made.dispatch()))
    plain = {(s.source.target.implementation, s.method): s.setting for s in lines.plain(found)}
    assert plain["wgpu", names.ONE_PASS] == ()
    curves = lines.varied(found, "bindings")
    (points,) = [p for (s, _, _), p in curves.items() if s.target.implementation == "wgpu"]
    assert sorted(points) == [1, 2, 4, 8] and points[8].value > points[1].value
    assert not lines.varied(found, "pipelines")


def test_too_few_n_give_a_quotient_and_say_so() -> None:
    make = made.Maker()
    for n in (1, 100):
        make.add(made.GPU, "dispatch", "empty", names.SEQUENTIAL, names.WALL, "us", 90.0 + 15 * n, n=n)
    (c,) = lines.costs(results(make))
    cost = c.of(names.SEQUENTIAL)
    assert c.by_method[names.SEQUENTIAL].slope() is None and cost and cost.value == pytest.approx(15.9, rel=0.02)
    assert "quotient" in markdown(build.document(results(make)))


def test_layers_are_differences_of_what_was_measured() -> None:
    found = {(s.source.target.kind, s.source.target.implementation, s.is_step): s for s in stacks(results(made.overhead()))}
    for is_step, layers in ((False, made.OP_LAYERS), (True, made.STEP_LAYERS)):
        dawn, wgpu = found["webgpu", "dawn", is_step], found["webgpu", "wgpu", is_step]
        assert [p.layer for p in dawn.parts] == ["GPU", "queue", "driver", "API", "C++", "Python"]
        for part, value in zip(dawn.parts, layers["dawn"], strict=True):
            assert part.estimate.low <= value <= part.estimate.high, part
        assert sum(p.estimate.value for p in dawn.parts) == pytest.approx(dawn.whole.value)
        assert sum(layers["dawn"]) == pytest.approx(dawn.whole.value, rel=0.02)
        assert [p.layer for p in wgpu.parts] == ["GPU", "queue", "API and driver", "C++", "Python"], (
            "Dawn's null driver says nothing about wgpu-native"
        )
        assert dawn.balance and (dawn.balance.value < 1) == is_step, "of the op the host is the slower, of the step the GPU"
    cuda, step = found["cuda", "torch", False], found["cuda", "torch", True]
    assert [(p.layer, round(p.estimate.value, 1)) for p in cuda.parts] == [
        ("GPU", 1.5),
        ("C++ and driver", 2.0),
        ("Python", 1.5),
    ]
    assert [p.layer for p in step.parts] == ["GPU", "C++ and Python"]
    assert step.share(step.parts[0]) == pytest.approx(4 / 9, rel=0.05)


def test_a_layer_below_its_noise_is_shown_as_no_difference() -> None:
    make = made.Maker(spread=0.0)
    for method, slopes in (
        (names.CALLS_ALONE, {names.HOST: 2.0}),
        (names.FROM_CPP, {names.HOST: 1.0}),
        (names.FROM_PYTHON, {names.HOST: 0.5, names.SUBMITTED: 2.5, names.WALL: 3.0}),
    ):
        for metric, slope in slopes.items():
            for n in made.COUNTS:
                spread = 0.2 if (method, metric) == (names.CALLS_ALONE, names.HOST) else 0.0
                make.add(made.GPU, "overhead", "x", method, metric, "us", make.samples(slope * n, spread), n=n)
    (stack,) = stacks(results(make))
    verdicts = {p.layer: p.verdict for p in stack.parts}
    assert verdicts["Python"].startswith("negative") and stack.part("Python").value == pytest.approx(-0.5)
    assert stack.part("C++").low < stack.part("C++").value < stack.part("C++").high
    text = markdown(build.document(results(make)))
    assert "contradict" in text and "−0.500 µs" in text, "never hidden"


def test_without_a_decomposition_the_report_names_its_command() -> None:
    text = markdown(build.document(results(made.dispatch())))
    assert "## Overhead" in text and "$ torch-webgpu bench overhead" in text
    assert "bench overhead" not in markdown(build.document(results(made.overhead())))


def test_fusion_is_compared_within_its_family() -> None:
    groups = {(g.source.target.implementation, g.workload): g for g in fusion.groups(results(made.fusion()))}
    rms, argmax = groups["wgpu", "rms_norm"], groups["wgpu", "argmax"]
    assert rms.baseline("by hand, 1") == "by hand, 6" and rms.baseline("by hand, 6") is None
    assert rms.baseline("compiled, full") == "compiled, none"
    best = rms.best("by hand")
    assert best and best[0] == "by hand, 1" and best[1].ratio == pytest.approx(1.5, rel=0.03) and best[1].p < 1e-6
    reversed_ = argmax.compared("eager")
    assert reversed_ and reversed_.ratio > 1 > reversed_.median_ratio
    assert groups["torch", "rms_norm"].best("eager") is not None


@pytest.mark.parametrize(
    ("number_", "maker", "figures"),
    (
        (1, made.dispatch, r"waited 13\d µs, unwaited 15\.\d µs, sequential slope (14\.9|15\.0) µs: (8\.[89]|9\.0)\d× with"),
        (
            2,
            made.dispatch,
            r"firefox .*: 1.[12]\d\d µs by the quotient at n = 100; slope (19|20)\d µs .* 8\d % of the quotient",
        ),
        (3, made.llm, r"each of the 876 saved was worth 1\.\d\d µs"),
        (4, made.llm, r"float32 on both, .*: 9[34]\d tok/s against 22\d tok/s .* 4[12]\d %"),
        (5, made.llm, r"2\.(2|3)\d× \(2\.\d+ to 2\.\d+\), medians 2\.\d+×, Welch p <\s0\.001, n = 30 and 30"),
        (6, made.fusion, r"by hand, 6 → by hand, 1 \(6 → 1 dispatches\): 1\.(4|5)\d× by the means"),
        (7, made.fusion, r"logits read back → eager .* 0\.8\d*× by the medians, reversed by outliers"),
        (8, made.power, r"0\.2\d\d J a token above 7\d\.\d W at idle"),
    ),
)
def test_disagreements_are_answered_from_data(number_: int, maker: object, figures: str) -> None:
    answer = disagreements.ANSWERS[number_ - 1]
    found = answer(results(maker()))  # type: ignore[operator]
    assert found.number == number_ and found.verdict
    assert any(re.search(figures, line) for line in found.found), found.found
    empty = answer(results(made.vision()))
    assert not empty.verdict and empty.command.startswith("torch-webgpu bench "), "without data it says what to run"


def test_energy_that_was_not_measured_is_not_there() -> None:
    text = markdown(build.document(results(made.power(measured=False))))
    assert "no energy was measured. NVML does not answer: no library." in text and "J a token above" not in text


def test_dtype_matched_cuda_alone_stands_beside() -> None:
    make = made.Maker()
    make.add(made.GPU, "llm", "Qwen2.5-0.5B", "compiled", names.RATE, "tokens/s", 900.0, dtype="float32")
    make.add(made.CUDA, "llm", "Qwen2.5-0.5B", "reduce-overhead", names.RATE, "tokens/s", 600.0, dtype="float16")
    make.add(made.CUDA, "llm", "Qwen2.5-0.5B", "reduce-overhead", names.RATE, "tokens/s", 222.0, dtype="float32", prompt=99)
    more = {"dtype": "float32", "quantize": "int4"}
    make.add(made.GPU, "llm", "Qwen2.5-0.5B", "compiled", names.RATE, "tokens/s", 2000.0, notes=(), **more)
    assert not disagreements.ANSWERS[3](results(make)).verdict, "neither another prompt nor int4 weights are the same thing"
    make.add(made.CUDA, "llm", "Qwen2.5-0.5B", "reduce-overhead", names.RATE, "tokens/s", 200.0, dtype="float32")
    (line,) = disagreements.ANSWERS[3](results(make)).found
    assert re.search(r"(89\d|90\d) tok/s against (19\d|20\d) tok/s", line)


def test_what_was_measured_here_comes_before_what_was_imported() -> None:
    theirs, ours = made.dispatch(), made.Maker(3)
    ours.line(made.FIREFOX, names.SEQUENTIAL, 200.0, 104_000.0)
    runs = [theirs.run(origin="imported"), ours.run()]
    found = lines.costs(Results((Path(f"{r.run}.json"), r) for r in runs))
    assert [c.source.imported for c in found] == [False, True, True, True, True]


def test_a_clock_that_shows_nothing_stops_no_report() -> None:
    make = made.Maker()
    for variant in ("by hand, 6", "by hand, 1", "eager", "compiled, full"):
        make.add(made.FIREFOX, "fusion", "rms_norm", variant, names.WALL, "us", [0.0] * 5, calls=1, submits="one a call")
    for n in made.COUNTS:
        make.add(made.FIREFOX, "dispatch", "empty", names.SEQUENTIAL, names.WALL, "us", [0.0] * 5, n=n)
    make.add(made.FIREFOX, "dispatch", "empty", names.WAITED, names.WALL, "us", [0.0], n=1)
    for level in ("none", "full"):
        make.add(made.FIREFOX, "llm", "Qwen2.5-0.5B", "plan", names.RATE, "tokens/s", [0.0, 0.0], fusion=level)
        make.add(made.FIREFOX, "overhead", "x + 1", level, "part", "us", [0.0, -0.1])
    assert "firefox" in html(build.document(results(make)))


def test_nearest_platform_of_the_paper() -> None:
    found = paper.nearest(made.GPU, paper.SEQUENTIAL)
    assert found and found.exact and (found.low, found.high) == (21.2869, 35.8202) and "RTX 5090" in found.platform
    naive = paper.nearest(made.GPU, paper.WAITED)
    assert naive and not naive.exact and "Dawn" in naive.platform, "the native one, not a browser's"
    firefox = paper.nearest(made.FIREFOX, paper.SEQUENTIAL)
    assert firefox and "Firefox" in firefox.platform and firefox.low > 1000
    assert paper.nearest(made.NULL, paper.SEQUENTIAL) is None
    mac = made.GPU.model_copy(update={"adapter": "Apple M2", "adapter_kind": "integrated", "backend": "Metal"})
    metal = paper.nearest(mac, paper.SEQUENTIAL)
    assert metal and metal.platform.startswith("M2, Metal, wgpu-native")
    assert len(paper.records()) == 403 and len(paper.contradictions()) == 20


def test_reruns_are_told_from_other_machines() -> None:
    same = results(made.dispatch(0), made.dispatch(9))
    chapter = build.agreement(same)
    (table,) = [b for b in chapter.blocks if isinstance(b, Table)]
    assert re.match(r"\d+ of 138 agree", table.caption)
    other = made.MACHINE.model_copy(update={"cpu": "EPYC"})
    runs = [made.dispatch(0).run(), made.dispatch(9).run(environment=other)]
    apart = Results((Path(f"{r.run}.json"), r) for r in runs)
    assert not build.agreement(apart)
    assert {apart.label(c.source) for c in lines.costs(apart)} >= {
        "wgpu on NVIDIA H200 (Vulkan), Xeon, 16 cores", "wgpu on NVIDIA H200 (Vulkan), EPYC, 16 cores",
    }  # fmt: skip
    shifted = made.Maker(1)
    shifted.line(made.GPU, names.SEQUENTIAL, 60.0, 90.0)
    first = made.Maker(2)
    first.line(made.GPU, names.SEQUENTIAL, 15.0, 90.0)
    (table,) = [b for b in build.agreement(results(first, shifted)).blocks if isinstance(b, Table)]
    assert table.caption.startswith("0 of 4 agree") and all(
        isinstance(r[-1], Cell) and r[-1].tone == "bad" for r in table.rows
    )


class Page(HTMLParser):
    """What a page refers to, and whether its elements are closed."""

    VOID = ("meta", "br", "link", "img", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.unlabelled = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.append(tag)
        self.ids += [named["id"] or ""] if "id" in named else []
        self.links += [named[k] or "" for k in ("href", "src", "xlink:href") if k in named]
        self.unlabelled += tag == "svg" and not (named.get("role") == "img" and named.get("aria-label"))
        self.unlabelled += tag == "th" and named.get("scope") not in ("col", "row")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else_and_can_be_read_by_all(pages: tuple[str, str]) -> None:
    page = Page(pages[0])
    assert not page.open and page.unlabelled == 0
    assert len(set(page.ids)) == len(page.ids), "no id twice, though all plots are in one page"
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links), "nothing is loaded"
    assert "script" not in page.tags and "@import" not in pages[0] and "url(http" not in pages[0]
    assert page.tags.count("svg") >= 10 and page.tags.count("table") >= 10
    assert "prefers-color-scheme: dark" in pages[0] and not re.search(r"#0a0b[01]", pages[0]), "colours are the page's own"


def test_both_pages_tell_the_same(pages: tuple[str, str]) -> None:
    for text in pages:
        assert "8 of the paper’s 8 disagreements are answered" in text
        assert "Interrupted, so incomplete" in text and "llm.json" in text
        assert "n = 120" in text and "RTX 5090" in text and "wgpu 0.32.0" in text
    assert all(f"### {i}. " in pages[1] for i in range(1, 9))


def test_what_files_hold_is_text_not_markup() -> None:
    make = made.Maker()
    make.add(made.GPU, "vision", "<b>|x", "<script>alert(1)</script>", names.WALL, "ms", 2.0)
    document = build.document(results(make))
    page = html(document)
    assert "<script>" not in page and "&lt;b&gt;|x" in page
    assert "<b>|x" not in markdown(document) and r"\<b\>\|x" in markdown(document)


def test_commands(folder: Path, tmp_path: Path) -> None:
    run = CliRunner(env={"COLUMNS": "200"}).invoke
    done = run(app, ["bench", "validate", str(folder)])
    assert done.exit_code == 0 and "interrupted" in done.stdout, done.output
    bad = tmp_path / "files"
    bad.mkdir()
    good = (folder / "vision.json").read_text()
    (bad / "good.json").write_text(good)
    (bad / "edited.json").write_text(good.replace("ViT-S/14", "ViT-B/14"))
    (bad / "cut.json").write_text(good[:400])
    done = run(app, ["bench", "validate", str(bad)])
    assert done.exit_code == 1 and "changed after it was written" in done.output and "was cut off" in done.output
    assert "good.json" in done.output
    done = run(app, ["bench", "report", str(bad), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0 and done.output.count("left out") == 2
    assert "Refused, so not in this report" in (tmp_path / "out" / "report.html").read_text("utf-8")
    (bad / "good.json").unlink()
    done = run(app, ["bench", "report", str(bad), "--out", str(tmp_path / "none")])
    assert done.exit_code == 2 and "no usable result file" in done.output and not (tmp_path / "none").exists()
    for command, code in (("report", 2), ("validate", 1)):
        done = run(app, ["bench", command, str(tmp_path / "missing")])
        assert done.exit_code == code and "does not exist" in done.output
