"""Graph colouring: the enumerator against every string, the verdicts of what is no colouring, the graphs drawn."""

from itertools import product

import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem
from offleash.eval.tasks import load_task
from offleash.eval.tasks.colouring import Colouring, _is_connected


@pytest.fixture(scope="module")
def probe() -> Colouring:
    return Colouring(split="probe", n=128)


@pytest.mark.parametrize("colours", [2, 3, 4])
def test_exactly_the_strings_that_verify_calls_correct_are_listed(colours: int) -> None:
    task = Colouring(split="train", n=12, nodes=4, colours=colours, min_edges=3, max_edges=5)
    strings = ["".join(letters) for length in range(1, 6) for letters in product("RGBYx", repeat=length)]
    for one in task.problems:
        verdicts = task.verify([one] * len(strings), strings)
        right = [text for text, verdict in zip(strings, verdicts, strict=True) if verdict.correct]
        listed = task.correct_answers(one)
        assert sorted(right) == list(listed)
        assert sorted(text for answer in listed for text in task.spellings(one, answer)) == list(listed)
        assert [verdict.answer for verdict in task.verify([one] * len(listed), listed)] == list(listed)


def test_a_triangle_and_a_path_have_as_many_colourings_as_their_polynomials_say() -> None:
    task = Colouring(n=1)

    def count(nodes: int, colours: int, edges: list[list[int]]) -> int:
        return len(task.correct_answers(Problem("g", "", "", {"nodes": nodes, "colours": colours, "edges": edges})))

    assert count(3, 3, [[0, 1], [0, 2], [1, 2]]) == 6
    assert count(3, 2, [[0, 1], [0, 2], [1, 2]]) == 0
    assert count(5, 4, [[0, 1], [1, 2], [2, 3], [3, 4]]) == 4 * 3**4
    assert count(5, 3, [[0, 1], [1, 2], [2, 3], [3, 4], [0, 4]]) == 2**5 - 2  # a cycle: (k-1)^n + (-1)^n (k-1)


def test_the_prompt_lists_the_edges_and_every_node_is_in_it(probe: Colouring) -> None:
    for one in probe.problems:
        listed = str(one.prompt).removesuffix(":").split(" ")
        assert [["abcdef".index(a), "abcdef".index(b)] for a, b in listed] == one.meta["edges"]
        assert set("".join(listed)) == set("abcdef")
        assert 6 <= len(listed) <= 9
        assert probe.verify([one], [one.gold])[0].correct


def test_a_graph_in_two_parts_is_not_connected() -> None:
    assert _is_connected(4, [(0, 1), (1, 2), (2, 3)])
    assert not _is_connected(4, [(0, 1), (2, 3)])
    assert not _is_connected(3, [(1, 2)])


def test_six_nodes_have_tens_of_answers(probe: Colouring) -> None:
    counts = sorted(len(probe.correct_answers(one)) for one in probe.problems)
    assert counts[0] >= 6
    assert 18 <= counts[64] <= 30


@pytest.mark.parametrize(
    "text",
    ["", "RGB", "RGBRGBR", "rgbrgb", "RGBRG ", " RGBRG", "RGBRGB\n", "RGBRGY", "ＲGBRGB", "R" * 10**6, "R\x00BRGB"],
)
def test_a_text_that_is_not_one_letter_per_node_is_no_answer(probe: Colouring, text: str) -> None:
    verdict = probe.verify(probe.problems[:1], [text])[0]
    assert (verdict.answer, verdict.correct, verdict.status, verdict.extracted_by) == (None, False, "no_answer", "")


def test_an_edge_of_one_colour_is_wrong_and_a_truncated_colouring_no_answer(probe: Colouring) -> None:
    one = probe.problems[0]
    verdicts = probe.verify([one] * 2, ["RRRRRR", one.gold], [False, True])
    assert [(v.answer, v.correct, v.status) for v in verdicts] == [
        ("RRRRRR", False, "ok"),
        (None, False, "truncated"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": 9}, "nodes .*8.* 9"),
        ({"colours": 5}, "colours .*4.* 5"),
        ({"min_edges": 8, "max_edges": 7}, "between 8 and 7"),
        ({"nodes": 4, "min_edges": 7}, "4 nodes .*between 7"),
        ({"nodes": 4, "min_edges": 3, "n": 999}, "n=999.*4 nodes, 3 colours and 3 to 6 edges"),
    ],
)
def test_unusable_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_task("colouring", **arguments)
