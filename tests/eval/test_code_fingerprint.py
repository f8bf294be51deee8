"""The fingerprint of a verifier changes with its code and whatever its verdict depends on, and with nothing else."""

import argparse
import functools
import importlib
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from offleash.eval.code_fingerprint import MAX_VALUES, verifier_fingerprint
from offleash.eval.errors import ConfigError

HELPER = """
LIMIT = 3
def normal(text):
    return text.strip()
def unused():
    return 1
"""
MODULE = """
import re
import helper
from helper import normal
PATTERN = re.compile("a+")
def correct(completions, scale=1.0, **columns):
    return [scale * bool(PATTERN.match(normal(text)) and len(text) < helper.LIMIT) for text in completions]
"""


@pytest.fixture
def fingerprint_of(tmp_path, monkeypatch):
    """Of the function in a module that imports another, both written anew."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def fingerprint(module=MODULE, helper=HELPER):
        for name, text in (("helper", helper), ("my_reward", module)):
            Path(f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return verifier_fingerprint(importlib.import_module("my_reward").correct)

    yield fingerprint
    for name in ("helper", "my_reward"):
        sys.modules.pop(name, None)


def test_another_process_finds_the_same(fingerprint_of):
    here = fingerprint_of()
    code = (
        "import my_reward; from offleash.eval.code_fingerprint import *; print(verifier_fingerprint(my_reward.correct))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == here


def test_comments_docstrings_and_other_functions_do_not_count(fingerprint_of):
    first = fingerprint_of()
    said = MODULE.replace("def correct", "# a remark\n\n\ndef correct").replace(
        "**columns):", '**columns):\n    "Doc."'
    )
    assert first == fingerprint_of() == fingerprint_of(said)
    assert first == fingerprint_of(helper=HELPER.replace("return 1", "return 2"))


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("module", "scale * bool", "scale + bool"),
        ("module", "scale=1.0", "scale=2.0"),
        ("module", '"a+"', '"b+"'),
        ("helper", "text.strip()", "text.lower()"),
        ("helper", "LIMIT = 3", "LIMIT = 4"),
    ],
)
def test_changes_with_the_function_its_defaults_its_constants_and_its_helpers(fingerprint_of, file, before, after):
    texts = {"module": MODULE, "helper": HELPER}
    assert before in texts[file]
    changed = {**texts, file: texts[file].replace(before, after)}
    assert fingerprint_of() != fingerprint_of(**changed)


def test_imports_inside_a_function_are_followed(fingerprint_of):
    module = (
        "def correct(completions, **columns):\n    from helper import normal\n    return [*map(normal, completions)]"
    )
    assert fingerprint_of(module) != fingerprint_of(module, HELPER.replace("strip", "lower"))
    assert fingerprint_of(module) == fingerprint_of(module, HELPER.replace("LIMIT = 3", "LIMIT = 4"))


def judge(wanted):
    return lambda completions, **columns: [float(wanted in text) for text in completions]


class Judge:
    def __init__(self, wanted):
        self.wanted = wanted

    def __call__(self, completions, **columns):
        return [float(self.wanted in text) for text in completions]

    def other(self, completions):
        return [0.0 for _ in completions]


@dataclass(frozen=True)
class Setting:
    value: float


@pytest.mark.parametrize(
    "make",
    [
        judge,
        Judge,
        lambda value: functools.partial(judge, value),
        lambda value: functools.cache(judge(value)),
        lambda value: Judge(value).other,
        lambda value: judge([value]),
        lambda value: judge({"a": {value}}),
        lambda value: judge(np.array([len(value), ord(value[0])])),
        lambda value: judge(Setting(ord(value[0]))),
    ],
)
def test_what_a_function_closes_over_and_an_object_holds_counts(make):
    assert verifier_fingerprint(make("4")) == verifier_fingerprint(make("4"))
    assert verifier_fingerprint(make("4")) != verifier_fingerprint(make("5"))


def test_two_lambdas_on_a_line_differ_and_a_function_without_a_file_has_one():
    one, two = (lambda text: text == "1"), (lambda text: text == "2")
    assert verifier_fingerprint(one) != verifier_fingerprint(two)
    typed = {}
    exec(textwrap.dedent("def correct(completions, **columns):\n    return [1.0 for _ in completions]"), typed)
    assert verifier_fingerprint(typed["correct"])


def test_functions_that_call_each_other_end():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    assert verifier_fingerprint(even) != verifier_fingerprint(odd)


def test_a_function_of_a_library_counts_by_its_name_and_version(monkeypatch):
    before = verifier_fingerprint(np.testing.assert_equal)
    assert before != verifier_fingerprint(np.testing.assert_allclose)
    monkeypatch.setattr(np, "__version__", "99")
    assert verifier_fingerprint(np.testing.assert_equal) != before


ARGS = argparse.Namespace(alpha=1.0, output_dir="runs/1")


def test_of_parsed_arguments_only_those_that_are_read_count(monkeypatch):
    def reward(completions, **columns):
        return [ARGS.alpha for _ in completions]

    first = verifier_fingerprint(reward)
    monkeypatch.setattr(ARGS, "output_dir", "runs/2")
    assert verifier_fingerprint(reward) == first
    monkeypatch.setattr(ARGS, "alpha", 2.0)
    assert verifier_fingerprint(reward) != first


def test_too_much_to_look_at_is_refused():
    with pytest.raises(ConfigError, match="version="):
        verifier_fingerprint(judge(list(map(str, range(MAX_VALUES)))))
