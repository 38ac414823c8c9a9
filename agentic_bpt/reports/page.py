"""One HTML page that holds everything of an experiment: no network, no script, no other file."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from agentic_bpt.whole_file import write_whole

_STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --faint: #667; --line: #ccd;
  --shade: #f3f4f7; --link: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e4e8; --paper: #16181c; --faint: #a0a4b0; --line: #3a3f4a; --shade: #22252c;
    --link: #6cb8ec; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { font-size: 1.25rem; margin-top: 2.5rem; padding-top: .75rem;
  border-top: 1px solid var(--line); }
a { color: var(--link); }
p { max-width: 46rem; }
.box { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: top; white-space: pre; }
th { background: var(--shade); }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1rem 0; }
img, video { display: block; max-width: 100%; height: auto; background: #fff;
  border-radius: 4px; }
pre { overflow-x: auto; padding: .75rem; background: var(--shade); border-radius: 4px;
  font-size: .875rem; }
.command { margin-bottom: 0; color: var(--faint); font-size: .875rem; }
"""

# Beside escaping: a browser that obeys it fetches nothing and runs no script, whatever is below.
_POLICY = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"


class Section(NamedTuple):
    """A part of the page; everything but heading and text may be left out."""

    heading: str
    text: str
    """Plain text; an empty line begins a paragraph."""
    header: Sequence[str] = ()
    """Names of the table's columns."""
    rows: Sequence[Sequence[str]] = ()
    """Plain text, as wide as the header; a line break in a cell is kept."""
    png: bytes | None = None
    alt: str = ""
    """What the picture or the video shows, for those who cannot see it."""
    video: bytes | None = None
    """mp4 or gif."""
    command: str = ""
    """What made it."""


def write_page(path: Path, *, title: str, summary: str, sections: Sequence[Section]) -> None:
    """Write a page atomically; text in it is shown as it is, whatever it holds.

    Raises:
        ValueError: a picture or a video of another kind or without `alt`, or a row that is not as
            wide as the header.
    """
    write_whole(path, page_of(title=title, summary=summary, sections=sections).encode())


def page_of(*, title: str, summary: str, sections: Sequence[Section]) -> str:
    """Give the HTML of a page.

    Raises:
        ValueError: As `write_page`.
    """
    names = [
        f'<li><a href="#section-{number}">{escape(section.heading)}</a></li>'
        for number, section in enumerate(sections)
    ]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            "</head>",
            "<body>",
            f"<h1>{escape(title)}</h1>",
            *_paragraphs(summary),
            *(["<nav><ul>", *names, "</ul></nav>"] if len(sections) > 1 else []),
            *(_section(number, section) for number, section in enumerate(sections)),
            "</body>",
            "</html>",
            "",
        ]
    )


def _section(number: int, section: Section) -> str:
    parts = [f'<section id="section-{number}">', f"<h2>{escape(section.heading)}</h2>"]
    parts += _paragraphs(section.text)
    if section.header:
        parts += _table(section)
    if (section.png or section.video) and not section.alt:
        raise ValueError(f"{section.heading}: a picture needs alt, what it shows, got none")
    if section.png is not None:
        parts.append(_picture(section.png, section.alt))
    if section.video is not None:
        parts.append(_picture(section.video, section.alt))
    if section.command:
        parts.append('<p class="command">Made by</p>')
        parts.append(f'<pre tabindex="0"><code>{escape(section.command)}</code></pre>')
    return "\n".join([*parts, "</section>"])


def _paragraphs(text: str) -> list[str]:
    return [f"<p>{escape(part.strip())}</p>" for part in text.split("\n\n") if part.strip()]


def _table(section: Section) -> list[str]:
    """Lay out the table in a box of its own, which scrolls where the screen is narrow."""
    for row in section.rows:
        if len(row) != len(section.header):
            raise ValueError(
                f"{section.heading}: a row must be as wide as the header, {len(section.header)}, "
                f"got {len(row)}: {list(row)}"
            )
    label = escape(section.heading)
    lines = [f'<div class="box" role="region" tabindex="0" aria-label="{label}"><table>']
    lines += ["<thead>", _row(section.header, "th"), "</thead>", "<tbody>"]
    lines += [_row(row, "td") for row in section.rows]
    return [*lines, "</tbody>", "</table></div>"]


def _row(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _picture(content: bytes, alt: str) -> str:
    """Put a picture or a video into the page itself, told apart by its first bytes."""
    kind = _kind(content)
    source = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    if kind == "video/mp4":
        media = (
            f'<video controls loop muted playsinline src="{source}" aria-label="{escape(alt)}">'
            "</video>"
        )
    else:
        media = f'<img src="{source}" alt="{escape(alt)}">'
    return f"<figure>{media}</figure>"


def _kind(content: bytes) -> str:
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if content[4:8] == b"ftyp":
        return "video/mp4"
    raise ValueError(f"a picture must be a PNG, a video an mp4 or GIF, got {content[:12]!r}")
