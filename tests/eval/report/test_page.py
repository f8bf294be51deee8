"""A page shows hostile text and never runs it; it is accessible and follows the reader's colors."""

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from offleash.eval.comparison.result import Comparison
from offleash.eval.report.page import html_report, render


class Page(HTMLParser):
    """What a browser would build of it, as far as this needs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "circle", "rect", "line", "polyline", "polygon", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def plain_characters(text: str) -> bool:
    return not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029\u2066-\u2069]", text)


def test_html_holds_no_element_or_attribute_that_a_model_wrote(pair: Comparison, series: Comparison) -> None:
    for comparison in (pair, series):
        text = html_report(comparison)
        page = Page(text)
        assert page.open == []
        names = {tag for tag, _ in page.tags}
        assert not names & {"img", "iframe", "object", "link", "a", "form", "input"}
        assert [attrs["type"] for tag, attrs in page.tags if tag == "script"] == ["application/json", "module"]
        assert not [
            name for _, attrs in page.tags for name in attrs if name.startswith("on") or name in ("src", "href")
        ]
        assert plain_characters(text)
        assert "<img src=x onerror=alert(1)>" in "".join(page.text)  # shown, not run
        assert "http" not in re.sub(r"http-equiv|http://evil", "", text)  # nothing is fetched


def test_html_is_accessible_and_follows_the_readers_colours(series: Comparison) -> None:
    page = Page(html_report(series))
    tags = dict(page.tags)
    assert tags["html"] == {"lang": "en"}
    assert "title" in tags
    figures = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert len(figures) > 6
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in figures)
    headers = [attrs for tag, attrs in page.tags if tag == "th"]
    assert all(attrs["scope"] in ("row", "col") for attrs in headers)
    style = html_report(series)
    assert "prefers-color-scheme: dark" in style
    assert "@media print" in style
    assert any("default-src 'none'" in (attrs.get("content") or "") for tag, attrs in page.tags if tag == "meta")


def test_figures_hold_only_finite_coordinates(pair: Comparison, series: Comparison) -> None:
    for comparison in (pair, series):
        for attribute in re.findall(r'(?:x|y|d|width|height|transform|viewBox)="([^"]*)"', html_report(comparison)):
            assert "nan" not in attribute
            assert "inf" not in attribute


def test_whatever_a_template_prints_is_visible_and_escaped(tmp_path: Path) -> None:
    template = tmp_path / "own.html"
    template.write_text(
        '{% extends "page.html" %}{% block content %}<i title="{{ text }}">{{ text }}</i>{% endblock %}'
    )
    made = render(template, title="a<b", command="c", warnings=["\x1b[0m"], text="\"'<img>\u202e")
    shown = "&#34;&#39;&lt;img&gt;⟨U+202E⟩"
    assert f'<i title="{shown}">{shown}</i>' in made
    assert "<h1>a&lt;b</h1>" in made
    assert "⟨U+001B⟩[0m" in made
    with pytest.raises(UndefinedError, match="text"):
        render(template, title="", command="", warnings=[])


def test_the_content_security_policy_allows_styles_and_the_page_s_own_script_alone(pair: Comparison) -> None:
    text = html_report(pair)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    (script,) = re.findall(r'<script type="module">(.*?)</script>', text, re.DOTALL)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules.pop("style-src") == "'unsafe-inline'"
    assert rules.pop("default-src") == "'none'"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert rules.pop("script-src") == f"'sha256-{digest}'"
    assert set(rules.values()) == {"'none'"}


def test_without_pools_to_read_a_page_has_no_script(pair: Comparison) -> None:
    text = html_report(replace(pair, pools=()))
    assert "<script" not in text
    assert "script-src 'none'" in text
