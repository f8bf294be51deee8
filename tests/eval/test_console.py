"""Nothing but `say` prints, and `say` shows control characters instead of sending them."""

import ast
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import offleash.callbacks
import offleash.eval
import offleash.train
from offleash.eval.console import say, visible
from offleash.eval.report.text import painted
from offleash.train.cli import main

HOSTILE = {
    "color": "\x1b[31mred",
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;cm0gLXJm\x07",
    "link": "\x1b]8;;http://x\x1b\\here",
    "C1": "\x9b31m",
    "overwrite": "fine\rbroken",
    "backspace": "no\b\bok",
    "nul": "a\x00b",
    "reordered": "\u202eevil",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_control_character_reaches_either_stream(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    say(f"model {HOSTILE[name]}")
    say(f"model {HOSTILE[name]}", error=True)
    for text in capsys.readouterr():
        assert "⟨U+" in text
        assert all(c == "\n" or c.isprintable() for c in text)


def test_ordinary_text_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    say("Größe:\t3 ≥ 2\nnext line")
    assert capsys.readouterr().out == "Größe:\t3 ≥ 2\nnext line\n"


def _calls() -> Iterator[tuple[str, str]]:
    for package in (offleash.eval, offleash.callbacks, offleash.train):
        for path in Path(package.__path__[0]).resolve().rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    yield f"{path.parent.name}/{path.name}", ast.unparse(node.func)


def test_one_function_prints() -> None:
    printing = ("print", "tqdm.write", "sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write")
    found = {(file, call) for file, call in _calls() if call in printing or call.endswith((".print", "bar.write"))}
    assert found == {("eval/console.py", "print"), ("eval/console.py", "tqdm.write")}


def test_a_bar_is_never_titled_with_raw_text() -> None:
    assert visible("task\x1b]0;x\x07") == "task⟨U+001B⟩]0;x⟨U+0007⟩"


def test_import_and_compare_of_hostile_names_print_nothing_raw(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b]0;owned\x07"
    rows = [{"problem_id": f"p{i}{evil}", "answer": "1", "correct": True, f"column{evil}": 1} for i in range(3)]
    samples = tmp_path / "samples.jsonl"
    samples.write_text("\n".join(map(json.dumps, rows)))
    pool = tmp_path / f"pool{evil}"
    made = main(["import", str(samples), "--pool", str(pool), "--task", f"mine{evil}", "--model", f"m{evil}"])
    compared = main(["compare", str(pool), str(pool)])
    refused = main(["import", str(samples), "--pool", str(pool), "--task", f"other{evil}", "--model", "m"])
    out, err = capfd.readouterr()
    assert refused != 0, (made, compared)
    assert "\x1b" not in out + err
    assert "⟨U+001B⟩" in out + err


@pytest.mark.parametrize(
    ("terminal", "environment", "colored"),
    [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False)],
)
def test_color_is_for_terminals_and_never_a_model_s(
    terminal: bool, environment: dict[str, str], colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    say("Support shrinks\nmodel \x1b[31mred", paint=painted)
    assert ("\x1b[1m" in stream.getvalue()) == colored
    assert "model ⟨U+001B⟩[31mred" in stream.getvalue()
