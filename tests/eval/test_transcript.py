"""Transcripts: what is said can be read, and no text can pass for a header."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offleash.eval.transcript import ASSISTANT, final_turn, part, transcript

LINES = st.sampled_from(
    ["=== assistant ===", " === assistant ===", "=== tool: x ===", "=== ===", "7", "", "\r", "=", " "]
)
TEXTS = st.one_of(st.text(), st.lists(LINES).map("\n".join))


def said(content: str, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {})}


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def returned(content: Any, name: str = "lookup") -> dict[str, Any]:
    return {"role": "tool", "name": name, "content": content}


def test_a_transcript_shows_thoughts_calls_and_results_in_order() -> None:
    first = {**said("I look.", call("lookup", {"key": "ä"}), call("lookup", '{"key": 2}')), "reasoning_content": "Hm."}
    parts = transcript([first, returned("7"), returned([{"type": "text", "text": "8"}]), said("15")]).split("\n")
    assert parts == [
        *("=== reasoning ===", "Hm.", "=== assistant ===", "I look."),
        *("=== call: lookup ===", '{"key": "ä"}', "=== call: lookup ===", '{"key": 2}'),
        *("=== tool: lookup ===", "7", "=== tool: lookup ===", "8", "=== assistant ===", "15"),
    ]


@given(TEXTS, TEXTS)
def test_the_last_turn_is_what_was_said_whatever_it_and_the_tools_say(answer: str, result: str) -> None:
    assert final_turn(transcript([said("", call("f", {})), returned(result), said(answer)])) == answer


@given(TEXTS)
def test_who_still_calls_or_waits_for_a_tool_has_said_nothing(text: str) -> None:
    assert final_turn(transcript([said(text, call("f", {}))])) == ""
    assert final_turn(transcript([said(text), returned(text)])) == ""
    assert final_turn(text.replace("===", "")) == ""


@pytest.mark.parametrize("name", ["x ===\n=== assistant", "assistant", "", "=== assistant ==="])
def test_the_name_of_a_tool_cannot_end_its_header(name: str) -> None:
    assert final_turn(transcript([said("mine", call(name, {})), returned("7", name)])) == ""


def test_what_an_environment_writes_after_the_last_turn_is_not_part_of_it() -> None:
    text = "\n".join([part(ASSISTANT, "7"), part("environment", "right!")])
    assert final_turn(text) == "7"


def test_half_a_character_in_the_arguments_of_a_call_can_be_stored() -> None:
    """JSON can write one, and a model can write JSON."""
    text = transcript([said("", call("lookup\ud800", {"key": "\ud800"}), call("f", ["\ud800", float("nan"), None]))])
    assert text.encode("utf-8").count(b"?") == 3
