"""Makes one self-contained HTML page of sections, tables and figures that a reader may choose from.

Everything is inline, the plotting library too; the page asks nothing of any network and follows the
reader's choice of light or dark. Pure: no I/O, no clock.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import orjson

from loadgen.page_style import SCRIPT, STYLE

__all__ = [
    "Cell",
    "Chooser",
    "Page",
    "Section",
    "bullets",
    "card",
    "details",
    "json_block",
    "render",
    "table",
]

Json = Mapping[str, Any]
AMOUNT = r"[-+]?[\d.,]+( ?(ms|s|%))?"
FIGURE = re.compile(f"–|{AMOUNT}( → {AMOUNT})?")


@dataclass(frozen=True, slots=True)
class Cell:
    """A table's cell with a kind: pass, fail, open, dim or words (left, wrapping)."""

    text: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Chooser:
    """Figures of which one is shown at a time, chosen by a list for each axis.

    Args:
        title: what they show.
        axes: each with its name and its options; none for a single figure.
        figures: Plotly figures by the options chosen, joined by "|"; missing ones are said.
        start: the options shown at first; the first of each axis by default.
        note: a sentence below the title.
    """

    title: str
    figures: Mapping[str, Json]
    axes: Sequence[tuple[str, Sequence[str]]] = ()
    start: Sequence[str] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, what stands under it, and its figures."""

    title: str
    html: str = ""
    choosers: Sequence[Chooser] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page: what the browser calls it, its beginning, its sections, its digest."""

    title: str
    top: str
    sections: Sequence[Section]
    analysis_sha256: str
    contents: bool = False


def _cell(value: str | Cell, tag: str = "td", head: str = "") -> str:
    cell = value if isinstance(value, Cell) else Cell(value)
    kind = f' class="{cell.kind}"' if cell.kind else ""
    name = f' data-head="{escape(head)}"' if head else ""
    return f"<{tag}{kind}{name}>{escape(cell.text)}</{tag}>"


def _heading_kind(column: Sequence[str | Cell], number: int) -> str:
    """Words stand on the left, and so does their heading; a second column of figures does not."""
    if any(isinstance(c, Cell) and "words" in c.kind for c in column):
        return "words"
    figures = all(isinstance(c, str) and FIGURE.fullmatch(c) for c in column)
    return "figure" if number == 1 and column and figures else ""


def _row(row: Sequence[str | Cell], names: Sequence[str], kinds: Sequence[str]) -> str:
    cells = (
        Cell(v, "figure" if kind == "figure" else "") if isinstance(v, str) else v
        for v, kind in zip(row, kinds, strict=True)
    )
    return "".join(_cell(v, "td", h) for v, h in zip(cells, names, strict=True))


def table(
    head: Sequence[str], body: Sequence[Sequence[str | Cell]], *, stacked: bool = False
) -> str:
    """Return a table that scrolls inside its own box; the first column stays in sight.

    If it is stacked, or has a column of words, its rows stand as blocks on a narrow page, each
    value by its heading.
    """
    kinds = [_heading_kind([row[n] for row in body], n) for n in range(len(head))]
    top = "".join(_cell(Cell(h, k), "th") for h, k in zip(head, kinds, strict=True))
    blocks = stacked or "words" in kinds
    names = head if blocks else [""] * len(head)
    kind = ' class="stacked"' if blocks else ""
    inner = "".join(f"<tr>{_row(row, names, kinds)}</tr>" for row in body)
    return (
        f'<div class="scroll" tabindex="0"><table{kind}><thead><tr>{top}</tr></thead>'
        f"<tbody>{inner}</tbody></table></div>"
    )


def bullets(lines: Sequence[str]) -> str:
    """Return a list of sentences; nothing for none."""
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""


def card(title: str, tag: Cell, parts: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Return a box: a title with a tag, and lists side by side where there is room."""
    columns = "".join(
        f"<section><h4>{escape(name)}</h4>{bullets(lines)}</section>" for name, lines in parts
    )
    badge = f'<span class="tag {tag.kind}">{escape(tag.text)}</span>'
    return f'<div class="card"><h3>{escape(title)}{badge}</h3><div>{columns}</div></div>'


def details(summary: str, html: str, *, opened: bool = False) -> str:
    """Return what is hidden under its summary until asked for."""
    state = " open" if opened else ""
    return f"<details{state}><summary>{escape(summary)}</summary>{html}</details>"


def json_block(value: object) -> str:
    """Return a value as indented JSON."""
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
    return f"<pre>{escape(text.decode())}</pre>"


def _options(options: Sequence[str], chosen: str) -> str:
    return "".join(
        f"<option{' selected' if option == chosen else ''}>{escape(option)}</option>"
        for option in options
    )


def _started(chooser: Chooser) -> Sequence[str]:
    return chooser.start or [options[0] for _, options in chooser.axes]


def _chooser(chooser: Chooser, number: int) -> str:
    selects = "".join(
        f'<label>{escape(name)} <select data-of="f{number}">{_options(options, start)}'
        "</select></label>"
        for (name, options), start in zip(chooser.axes, _started(chooser), strict=True)
    )
    note = f'<p class="dim">{escape(chooser.note)}</p>' if chooser.note else ""
    picks = f'<div class="picks">{selects}</div>' if selects else ""
    return (
        f'<h3>{escape(chooser.title)}</h3>{note}{picks}<div class="chart" id="f{number}" '
        f'role="img" aria-label="{escape(chooser.title)}"></div>'
    )


def _anchor(title: str) -> str:
    # The prefix keeps a heading's name apart from the names that the script looks for.
    return "s-" + "".join(c if c.isalnum() else "-" for c in title.lower())


def _sections(page: Page) -> tuple[str, list[Json]]:
    html: list[str] = []
    figures: list[Json] = []
    for section in page.sections:
        own = []
        for chooser in section.choosers:
            own.append(_chooser(chooser, len(figures)))
            figures.append(dict(chooser.figures))
        body = section.html + "".join(own)
        html.append(f'<h2 id="{_anchor(section.title)}">{escape(section.title)}</h2>{body}')
    return "".join(html), figures


def _contents(page: Page) -> str:
    if not page.contents:
        return ""
    links = "".join(f'<a href="#{_anchor(s.title)}">{escape(s.title)}</a>' for s in page.sections)
    return f'<nav aria-label="Contents">{links}</nav>'


def _safe_json(value: object) -> str:
    # A closing tag inside a JSON string would end the script element.
    return orjson.dumps(value).decode().replace("<", "\\u003c")


def render(page: Page, plotly_js: str) -> str:
    """Return the page as HTML.

    Args:
        page: what it says.
        plotly_js: the plotting library's source.
    """
    body, figures = _sections(page)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta name="analysis-sha256" content="{page.analysis_sha256}">'
        f"<title>{escape(page.title)}</title><style>{STYLE}</style></head>"
        f"<body>{page.top}{_contents(page)}{body}"
        f'<script type="application/json" id="figures">{_safe_json(figures)}</script>'
        f"<script>{plotly_js}</script><script>{SCRIPT}</script></body></html>\n"
    )
