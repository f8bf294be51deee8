"""Prompts and completions as text: messages and parts are joined, and what is not text is named, not shown."""

from offleash.eval.problem import chat_text, content_parts

IMAGE = {"type": "image_url", "image_url": "data:image/png;base64," + "A" * 1000}
ASKED = [{"role": "user", "content": [IMAGE, {"type": "text", "text": "what?"}]}]


def test_plain_text_stays_as_it_is() -> None:
    assert chat_text("a\nb", between="-", roles=True) == "a\nb"


def test_messages_and_parts_are_joined_as_asked() -> None:
    turns = [{"role": "system", "content": "Be brief."}, *ASKED, {"role": "assistant", "content": None}]
    assert chat_text(turns, between="|", other=lambda part: "<>") == "Be brief.|<>what?|"
    assert chat_text([], between="|") == ""


def test_images_are_named_not_shown() -> None:
    assert chat_text(ASKED, between_parts=" ", roles=True) == "user: [image_url] what?"


def test_keys_that_a_dataset_filled_in_are_dropped() -> None:
    assert list(content_parts([{"type": "text", "text": "x", "image_url": None}])) == [{"type": "text", "text": "x"}]
