"""The page: whole in itself, well formed, and nothing in it runs."""

import base64
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from agentic_bpt.reports.page import Section, page_of, write_page

PNG = b"\x89PNG\r\n\x1a\n and the rest"
GIF = b"GIF89a and the rest"
MP4 = b"\0\0\0\x20ftypisom and the rest"
EVIL = '<script>alert("x")</script>\' & "<img src=http://a.b/c onerror=alert(1)>'
VOID = {"meta", "img"}


class Checker(HTMLParser):
    """Reads a page and fails on tags that do not match or on anything that would be fetched."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str):
        assert self.open.pop() == tag

    def handle_data(self, data: str):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def values(self, name: str) -> list[str]:
        return [value for _, found, value in self.attributes if found == name]


def full(text: str = "Why & what") -> Section:
    return Section(
        heading=text,
        text=f"{text}\n\nSecond paragraph",
        header=("method", text),
        rows=[("at", text), ("dt", "1.0\n[0.5, 1.5]")],
        png=PNG,
        alt=text,
        video=MP4,
        command=text,
    )


def checked(*sections: Section, **more: Any) -> Checker:
    texts = {"title": "Title", "summary": "Summary", **more}
    return Checker(page_of(**texts, sections=sections))


def test_page_is_well_formed_and_fetches_nothing():
    page = checked(full(), Section("Film", "", video=GIF, alt="a film"))
    assert {"html", "head", "body", "nav", "table", "img", "video", "pre"} <= set(page.tags)
    assert not {"script", "link", "iframe", "object", "form"} & set(page.tags)
    assert page.values("src") == [
        f"data:{kind};base64,{base64.b64encode(content).decode()}"
        for kind, content in (("image/png", PNG), ("video/mp4", MP4), ("image/gif", GIF))
    ]
    ids = set(page.values("id"))
    assert [href.removeprefix("#") for href in page.values("href")] == sorted(ids)
    assert "@import" not in page.texts["style"][0]
    assert "url(" not in page.texts["style"][0]
    (policy,) = [value for value in page.values("content") if "default-src" in value]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy


def test_what_is_written_is_shown_and_never_run():
    page = checked(full(EVIL), full(EVIL), title=EVIL, summary=EVIL)
    assert "script" not in page.tags
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert all(src.startswith("data:") for src in page.values("src"))
    for tag in ("title", "h1", "h2", "a", "p", "th", "td", "code"):
        assert EVIL in "".join(page.texts[tag]), tag
    assert page.values("alt") == [EVIL, EVIL]


def test_a_narrow_or_dark_screen_is_thought_of():
    page = checked(full())
    assert "width=device-width, initial-scale=1" in page.values("content")
    assert "prefers-color-scheme: dark" in page.texts["style"][0]
    boxes = [value for tag, name, value in page.attributes if (tag, name) == ("div", "class")]
    assert boxes == ["box"]  # one a table, which scrolls in it
    assert "nav" not in page.tags  # of one section


def test_empty_parts_are_left_out():
    page = checked(Section("Only", "text"))
    assert not {"table", "img", "video", "pre", "figure"} & set(page.tags)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"alt": ""}, "needs alt"),
        ({"png": b"<svg>"}, "must be a PNG"),
        ({"rows": [("only one",)]}, "as wide as the header, 2, got 1"),
    ],
)
def test_a_section_that_cannot_be_shown_is_refused(changes: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        checked(full()._replace(**changes))


def test_page_is_written_whole(tmp_path: Path):
    path = tmp_path / "deep" / "index.html"
    write_page(path, title="Ä", summary="", sections=[full()])
    assert path.read_text(encoding="utf-8") == page_of(title="Ä", summary="", sections=[full()])
    assert [file.name for file in path.parent.iterdir()] == ["index.html"]
