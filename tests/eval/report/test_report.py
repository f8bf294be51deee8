"""A report shows the comparison's numbers in every format, and no text of a model can act in any of them."""

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from offleash.eval.comparison.compare import compare
from offleash.eval.comparison.result import Comparison
from offleash.eval.comparison.scopes import ROWS
from offleash.eval.console import visible
from offleash.eval.pool.pool import Pool
from offleash.eval.report.latex import latex_report
from offleash.eval.report.markup import markdown_report
from offleash.eval.report.numbers import estimate, number, p_value, share
from offleash.eval.report.page import html_report
from offleash.eval.report.record import json_report
from offleash.eval.report.sanitize import html_text, latex_text, markdown_code, markdown_text, one_line
from offleash.eval.report.text import text_report
from offleash.eval.report.write import FORMATS
from offleash.eval.stats.intervals import Estimate
from offleash.eval.stats.support import CELLS, METRICS


def plain_characters(text: str) -> bool:
    return not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029\u2066-\u2069]", text)


# Hostile text.


def cells_of_markdown(line: str) -> list[str]:
    assert line.startswith("| ")
    assert line.endswith(" |")
    return line[2:-2].split(" | ")


def test_markdown_tables_keep_their_columns_and_text_stays_in_its_block(series: Comparison) -> None:
    text = markdown_report(series)
    assert plain_characters(text)
    width = 0
    for line in text.split("\n"):
        if line.startswith("    "):
            continue  # an indented block: shown as it is
        assert not re.search(r"<[a-zA-Z/!]|\]\(|!\[|```|https?://|www\.\w", line)
        if line.startswith("|"):
            cells = cells_of_markdown(line)
            assert width in (0, len(cells))
            width = len(cells)
        else:
            width = 0
    assert "    </script><img src=x onerror=alert(1)>" in text
    for match in re.finditer(r"^    </script>", text, re.MULTILINE):
        assert text[: match.start()].endswith(":\n\n")  # only after a blank line is it a block


def test_latex_is_ascii_with_balanced_braces_and_no_command_of_a_model(series: Comparison) -> None:
    text = latex_report(series)
    assert text.isascii()
    commands = set(re.findall(r"\\([a-zA-Z]+)", text))
    ours = {"begin", "end", "caption", "label", "centering", "fontsize", "selectfont", "setlength", "tabcolsep"}
    ours |= {"medskip", "toprule", "midrule", "bottomrule", "usepackage"}
    ours |= {"geq", "leq", "to", "infty", "varepsilon", "ldots"}
    assert {name for name in commands if not name.startswith("text")} <= ours
    for line in text.split("\n"):
        if not line.startswith("%"):
            bare = re.sub(r"\\[{}]", "", line)
            assert bare.count("{") - bare.count("}") in (0, 1, -1)
    bare = re.sub(r"\\[{}]|^%.*", "", text, flags=re.MULTILINE)
    assert bare.count("{") == bare.count("}")
    assert text.count(r"\toprule") == text.count(r"\bottomrule") > 5
    for body in re.findall(r"\\toprule\n(.*?)\\bottomrule", text, re.DOTALL):
        rows = [line for line in body.split("\n") if line.endswith(r"\\")]
        assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1


def test_the_terminal_gets_no_escape_sequence_and_no_line_too_long(series: Comparison) -> None:
    text = text_report(series, width=118)
    assert plain_characters(text)
    assert max(map(len, text.split("\n"))) <= 150
    assert "NSCR" in text


@pytest.mark.parametrize(
    ("text", "latex", "markdown"),
    [
        (r"a_b & 50% #1 $x^2$ {y} ~ \z", None, None),
        ("-.107", r"$-$.107", "-.107"),
        (".893 [.740, .960]", ".893 [.740, .960]", ".893 [.740, .960]"),
        ("[x](y)", "{}[x](y)", "&#91;x&#93;(y)"),
        ("[1](2)", "{}[1](2)", "&#91;1&#93;(2)"),
        ("*", "{}*", "&#42;"),
        ("é ∞ 漢", r"e $\infty$ ?", "é ∞ 漢"),
        ("<p", r"\textless{}p", "&#60;p"),
        ("a|b", r"a\textbar{}b", "a&#124;b"),
        ("x\ny", "x y", "x y"),
    ],
)
def test_escapes(text: str, latex: str | None, markdown: str | None) -> None:
    if latex is None:
        assert latex_text(text) == (
            r"a\_b \& 50\% \#1 \$x\textasciicircum{}2\$ \{y\} \textasciitilde{} \textbackslash{}z"
        )
        return
    assert latex_text(text) == latex
    assert markdown_text(text) == markdown


def test_what_acts_becomes_visible_and_lines_are_cut() -> None:
    assert visible("a\x1b[0m\u202eb\r\nc\td") == "a⟨U+001B⟩[0m⟨U+202E⟩b\nc\td"
    assert visible("\ud800") == "⟨U+D800⟩"
    assert html_text("<&\"'>") == "&lt;&amp;&quot;&#x27;&gt;"
    assert one_line("a\n" * 100, 10) == "a a a a a…"
    assert one_line("x" * 10_000_000, 8) == "x" * 7 + "…"
    assert markdown_code("a\n```\nb") == "    a\n    ```\n    b"


# Numbers.


def test_numbers_are_printed_as_the_paper_prints_them() -> None:
    assert [share(v) for v in (0.8929, -0.107, 1.0, 0.0, -0.0001, math.nan)] == [
        ".893",
        "-.107",
        "1.000",
        ".000",
        ".000",
        "–",
    ]
    assert [number(v) for v in (14.26, 0.01234, 12345.6, -0.0, math.inf)] == ["14.3", "0.0123", "12,346", "0", "∞"]
    assert estimate(Estimate(0.5, 0.25, 0.75, 4)) == ".500 [.250, .750]"
    assert estimate(Estimate(0.5, math.nan, math.nan, 1)) == ".500"
    assert [p_value(p) for p in (0.0004, 0.25, math.nan)] == ["<.001", ".250", "–"]


SUPPORT = {*CELLS, *METRICS, "detection_limit"} | {
    f"{word}_{cell}" for word in ("expected", "excess", "p", "p_strength", "sure") for cell in ("shrunk", "expanded")
}
SCOPE = {
    "problems", "one_unit", "k_min", "k_max", "n_min", "rows_k", "unit", "problem",
    "pass_at_k", "curves_state", "leads", "samples", "perplexity", "spelling",
}  # fmt: skip
EXAMPLE = {
    "task", "problem_id", "answer", "base_hits", "base_n", "policy_hits", "policy_n",
    "whole_problem", "sure", "prompt", "gold", "base_text", "policy_text",
}  # fmt: skip


LINE = {"cells", "nscr", "line", "above", "reached", "log_weight", "verdict"}


def test_json_has_the_keys_that_are_promised(series: Comparison) -> None:
    record = json.loads(json_report(series))
    assert record.keys() == {"format", "confidence", "warnings", "notes", "base", "policies"}
    assert record["format"] == 3
    for result in record["policies"]:
        names = {"side", "overall", "tasks", "domains", "sensitivity", "importance", "leash", "lost", "gained"}
        assert result.keys() == names
        assert result["leash"].keys() == {"unit", "problem", "pass_at_k"}
        assert result["leash"]["unit"].keys() == result["leash"]["problem"].keys() == LINE
        assert [row["k"] for row in result["leash"]["pass_at_k"]] == [r["k"] for r in result["overall"]["pass_at_k"]]
        assert result["side"].keys() == record["base"].keys() >= {"label", "model", "step", "draws", "tasks"}
        for scope in (result["overall"], *result["tasks"].values(), *result["domains"].values()):
            assert scope.keys() == SCOPE
            assert scope["samples"].keys() == ROWS.keys()
            for level in (scope["unit"], scope["problem"]):
                assert level.keys() == {"total", "hits1", "hits5"}
                assert level["hits1"].keys() == level["hits5"].keys() == SUPPORT
            for name in (*CELLS, *METRICS):
                assert scope["unit"]["hits1"][name].keys() == {"value", "low", "high", "n"}
            assert all(row.keys() == {"k", "base", "policy", "difference"} for row in scope["pass_at_k"])
        assert all(row.keys() == {"eps", "observed", "posterior", "noise"} for row in result["sensitivity"])
        assert result["lost"].keys() == {"units", "problems", "examples"}
        assert all(example.keys() == EXAMPLE for example in result["lost"]["examples"])


def test_json_has_the_comparison_s_numbers(pair: Comparison) -> None:
    (result,) = json.loads(json_report(pair))["policies"]
    support = result["overall"]["problem"]["hits1"]
    assert [support[name]["value"] for name in ("preserved", "expanded", "shrunk", "out")] == [2, 1, 1, 0]
    assert support["srr"]["value"] == pytest.approx(2 / 3)
    assert result["overall"]["pass_at_k"][0]["base"]["value"] == pytest.approx(9 / 32)
    assert result["lost"]["examples"][0]["base_text"].startswith("</script>")


def find_numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from find_numbers(item)
    elif isinstance(value, float):
        yield value


def test_what_is_undefined_is_null_and_every_format_survives_it(
    tmp_path: Path, hostile_pool: Callable[..., Pool]
) -> None:
    hostile_pool(tmp_path / "b", [0, 0], 1)
    hostile_pool(tmp_path / "p", [0, 0], 1)
    comparison = compare(tmp_path / "b", tmp_path / "p", resamples=20)
    record = json.loads(json_report(comparison))
    scope = record["policies"][0]["overall"]
    assert scope["problem"]["hits1"]["srr"] == {"value": None, "low": None, "high": None, "n": 2}
    assert scope["leads"] == []
    assert scope["curves_state"] == "equal"
    assert all(map(math.isfinite, find_numbers(record)))
    for write in FORMATS.values():
        assert "nan" not in re.sub(r"domi?nant|finance|nan[a-z]", "", write(comparison, ())).lower()


def test_a_problem_without_any_correct_answer_listed_is_survived(
    tmp_path: Path, hostile_pool: Callable[..., Pool]
) -> None:
    hostile_pool(tmp_path / "b", [0, 0], 2, [(), ()])
    hostile_pool(tmp_path / "p", [0, 0], 2, [(), ()])
    comparison = compare(tmp_path / "b", tmp_path / "p", resamples=20)
    assert comparison.policies[0].overall.units.total == 0
    for write in FORMATS.values():
        assert write(comparison, ())


def test_every_format_has_the_same_srr(pair: Comparison) -> None:
    support = pair.policies[0].overall.problem_level.any_hit.estimates["srr"]
    cell = estimate(support)
    for write in (markdown_report, latex_report, text_report):
        assert cell in write(pair)
    assert f"{share(support.value)}<small>[" in html_report(pair)
