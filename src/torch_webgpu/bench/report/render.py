"""A document as one HTML page that needs nothing else, and as Markdown."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .document import Answer, Block, Cell, Document, Plot, Table


def html(document: Document) -> str:
    """The page: styles and plots inside, no script, nothing loaded."""
    environment = Environment(
        loader=PackageLoader("torch_webgpu.bench", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = _cell
    environment.filters["svg"] = Markup
    environment.tests["table"] = lambda block: isinstance(block, Table)
    environment.tests["plot"] = lambda block: isinstance(block, Plot)
    environment.tests["answer"] = lambda block: isinstance(block, Answer)
    style = Markup(environment.get_template("report.css").render())
    return environment.get_template("report.html").render(document=document, style=style)


def _cell(cell: Cell | str) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(cell)


def markdown(document: Document) -> str:
    """The same without the plots; their texts stand for them."""
    parts = [f"# {document.title}", document.summary]
    parts += [f"> **Note.** {_plain(w)}" for w in document.warnings]
    if document.headlines:
        head = Table("", ["", "figure", "", "the paper"], numeric=1)
        for h in document.headlines:
            beside = "; ".join([h.detail, *h.others])
            head.add(h.label, f"{h.value} {h.unit}".strip(), beside, h.paper)
        parts.append(_table(head))
    if document.share:
        parts.append(f"*{_plain(document.share.caption)}* {_plain(document.share.alt)}")
    for chapter in document.chapters:
        parts.append(f"## {chapter.title}")
        if chapter.lead:
            parts.append(_plain(chapter.lead))
        parts += [_block(block) for block in chapter.blocks]
    return "\n\n".join([*parts, f"*{document.made}*"]) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Plot):
        return f"*{_plain(block.caption)}* {_plain(block.alt)}"
    if isinstance(block, Answer):
        return _answer(block)
    return f"```console\n$ {block.text}\n```" if block.kind == "command" else _plain(block.text)


def _answer(answer: Answer) -> str:
    parts = [f"### {answer.number}. {answer.claim}", f"*In the paper:* {_plain(answer.paper)}"]
    parts.append(f"**{_plain(answer.verdict or 'These files do not answer it.')}**")
    parts += [_plain(line) for line in answer.found]
    if answer.table:
        parts.append(_table(answer.table))
    if answer.command:
        parts.append(f"```console\n$ {answer.command}\n```")
    return "\n\n".join(parts)


def _table(table: Table) -> str:
    head = [_plain(c) for c in table.columns]
    rule = [":--" if i < table.numeric else "--:" for i in range(len(head))]
    lines = ["| " + " | ".join(row) + " |" for row in (head, rule)]
    for row in table.rows:
        cells = [_cell(c) for c in row]
        lines.append(
            "| " + " | ".join(_plain(c.text) + (f" ({_plain(c.detail)})" if c.detail else "") for c in cells) + " |"
        )
    caption = [f"**{_plain(table.caption)}**"] if table.caption else []
    return "\n\n".join([*caption, "\n".join(lines), *([_plain(table.note)] if table.note else [])])


def _plain(text: Any) -> str:
    """Text that Markdown takes as text."""
    for sign in "\\|*_`<>[]":
        text = text.replace(sign, "\\" + sign)
    return " ".join(str(text).split())
