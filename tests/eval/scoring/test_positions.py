"""Where support is lost, on hand-made trees, by brute force over texts."""

import itertools
import math

import numpy as np
import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.scoring.exact import ExactUnits
from offleash.eval.scoring.positions import CLASSES, completion, shift, text_paths, where_lost

END = 0


def units_of(problems, model):
    """Problems as {answer: [tokens of a text, ...]}; `model` gives the probability of a token after a prefix."""
    units = [(p, answer) for p, answers in enumerate(problems) for answer in answers]
    rows = [(u, [*text, END]) for u, (p, answer) in enumerate(units) for text in problems[p][answer]]
    logprobs = [[math.log(model(units[u][0], tuple(ids[:i]), ids[i])) for i in range(len(ids))] for u, ids in rows]
    logprob_t = np.array([sum(one) for one in logprobs])
    text_unit = np.array([u for u, _ in rows], dtype=np.int64)
    return ExactUnits(
        unit_problem=np.array([p for p, _ in units], dtype=np.int64),
        unit_answer=tuple(answer for _, answer in units),
        probability_u=np.bincount(text_unit, np.exp(logprob_t), minlength=len(units)),
        text_unit=text_unit,
        texts=tuple(str(ids[:-1]) for _, ids in rows),
        logprob_t=logprob_t,
        tokens_t=np.array([len(ids) for _, ids in rows], dtype=np.int64),
        token_id_i=np.array([token for _, ids in rows for token in ids], dtype=np.int64),
        token_logprob_i=np.array([value for one in logprobs for value in one]),
        problem_ids=tuple(f"p{p}" for p in range(len(problems))),
    )


def random_model(seed):
    """A distribution over five tokens after every prefix, drawn when it is first asked for."""
    rng, known = np.random.default_rng(seed), {}

    def probability(problem, prefix, token):
        if (problem, prefix) not in known:
            known[problem, prefix] = rng.dirichlet([0.5] * 5)
        return known[problem, prefix][token]

    return probability


def random_problems(seed):
    rng = np.random.default_rng(seed)
    problems = []
    for _ in range(6):
        texts = sorted({tuple(rng.integers(1, 4, rng.integers(1, 6)).tolist()) for _ in range(rng.integers(2, 14))})
        owner = rng.integers(0, max(1, len(texts) // 2), len(texts))
        problems.append({f"a{o}": [list(t) for t, w in zip(texts, owner, strict=True) if w == o] for o in set(owner)})
    return problems


def ended(problems):
    """(problem, answer, text with its end) of every text."""
    return [(p, a, (*t, END)) for p, answers in enumerate(problems) for a, texts in answers.items() for t in texts]


def brute_parts(problems, p, answer, text):
    """The indices at which a text of another answer of the problem shares everything before and differs."""
    others = [t for q, a, t in ended(problems) if q == p and a != answer]
    return [i for i in range(len(text)) if any(t[:i] == text[:i] and len(t) > i and t[i] != text[i] for t in others)]


@pytest.mark.parametrize("seed", range(5))
def test_branching_points_are_those_of_brute_force(seed):
    problems = random_problems(seed)
    units = units_of(problems, random_model(seed))
    paths = text_paths(units)
    start_t = np.cumsum(units.tokens_t) - units.tokens_t
    for t, (p, answer, text) in enumerate(ended(problems)):
        parts = brute_parts(problems, p, answer, text)
        names = ["first token", *("other tokens" for _ in text[1:])]
        for rank, place in enumerate(parts):
            if place > 0:
                names[place] = "later branching points" if rank else "first branching point"
        here = slice(start_t[t], start_t[t] + len(text))
        assert [CLASSES[c] for c in paths.class_i[here]] == names
        assert paths.first_t[t] == (start_t[t] + parts[0] if parts else -1)
        assert paths.last_t[t] == (start_t[t] + parts[-1] if parts else -1)


@pytest.mark.parametrize("seed", range(5))
def test_shifts_by_position_and_the_texts_of_an_answer_add_up_to_the_whole(seed):
    problems = random_problems(seed)
    base, policy = units_of(problems, random_model(seed)), units_of(problems, random_model(seed + 100))
    moved = shift(base, policy, text_paths(base))
    np.testing.assert_allclose(moved.total_u, np.log(policy.probability_u / base.probability_u))
    np.testing.assert_allclose(moved.class_uc.sum(axis=1), moved.depth_ud.sum(axis=1))
    for u in range(len(base.unit_answer)):
        texts = np.flatnonzero(base.text_unit == u)
        q = np.exp(base.logprob_t[texts]) / base.probability_u[u]
        p = np.exp(policy.logprob_t[texts]) / policy.probability_u[u]
        assert moved.rewritten_u[u] == pytest.approx(np.sum(q * np.log(q / p)), abs=1e-12)
        assert moved.rewritten_u[u] >= -1e-12
        first = np.cumsum(base.tokens_t)[texts] - base.tokens_t[texts]
        wanted = np.sum(q * (policy.token_logprob_i[first] - base.token_logprob_i[first]))
        assert moved.depth_ud[u, 0] == moved.class_uc[u, 0] == pytest.approx(wanted)


def brute_completion(problems, model, p, answer, prefix):
    """By walking every text of the problem from the prefix on: of this answer, of any."""
    own = total = 0.0
    for q, other, text in ended(problems):
        if q == p and text[: len(prefix)] == prefix:
            mass = math.prod(model(p, text[:i], text[i]) for i in range(len(prefix), len(text)))
            total += mass
            own += mass * (other == answer)
    return own, total


@pytest.mark.parametrize(("seed", "which"), [*itertools.product(range(4), (0, -1))])
def test_the_chance_to_complete_an_answer_is_that_of_brute_force(seed, which):
    problems, models = random_problems(seed), [random_model(seed), random_model(seed + 50)]
    base, policy = (units_of(problems, model) for model in models)
    paths = text_paths(base)
    at_t = paths.first_t if which == 0 else paths.last_t
    for units, model in zip((base, policy), models, strict=True):
        found = completion(base, units, paths, at_t)
        wanted = {}
        for t, (p, answer, text) in enumerate(ended(problems)):
            if parts := brute_parts(problems, p, answer, text):
                share = math.exp(base.logprob_t[t]) / base.probability_u[base.text_unit[t]]
                pair = np.array(brute_completion(problems, model, p, answer, text[: parts[which] + 1]))
                wanted[base.text_unit[t]] = wanted.get(base.text_unit[t], 0) + share * pair
        for u in range(len(base.unit_answer)):
            pair = wanted.get(u, (math.nan, math.nan))
            assert (found.own_u[u], found.any_u[u]) == pytest.approx(tuple(pair), nan_ok=True)
        if which == -1:  # after the last branching point no other answer is left
            np.testing.assert_allclose(found.own_u, found.any_u)


def table_model(**tables):
    """Probabilities by prefix, as text; tokens that are not named share what is left."""

    def probability(problem, prefix, token):
        row = tables["".join("xabcde"[i] for i in prefix) or "start"]
        return row["xabcde"[token]]

    return probability


SINGLE = [{"A": [[1]], "B": [[2]]}]
"""Two answers of one token each."""


def test_an_answer_lost_at_its_only_token_is_lost_at_the_first_token_and_still_executable():
    base = units_of(SINGLE, table_model(start={"a": 0.5, "b": 0.4}, a={"x": 0.9}, b={"x": 0.8}))
    policy = units_of(SINGLE, table_model(start={"a": 0.99, "b": 0.001}, a={"x": 0.9}, b={"x": 0.7}))
    found = where_lost(base, policy, eps=0.01)
    assert (found.lost.units, found.kept.units) == (1, 1)
    first, branch, later, other = found.lost.classes
    assert first == pytest.approx(math.log(0.001 / 0.4))
    assert (branch, later) == (0, 0)
    assert other == pytest.approx(math.log(0.7 / 0.8))
    assert found.lost.rewritten == pytest.approx(0, abs=1e-12)
    assert found.lost.total == pytest.approx(first + other)
    assert found.lost.shares == pytest.approx((first / (first + other), 0, 0, other / (first + other)))
    assert found.lost.after_first == found.lost.any_after_first == found.lost.after_last == pytest.approx((0.8, 0.7))
    np.testing.assert_allclose(found.lost.depth_d, [first, other])


def test_a_text_that_begins_another_parts_from_it_at_its_end():
    problems = [{"A": [[1]], "B": [[1, 2]]}]
    base = units_of(problems, table_model(start={"a": 0.9}, a={"x": 0.5, "b": 0.4}, ab={"x": 1.0}))
    policy = units_of(problems, table_model(start={"a": 0.9}, a={"x": 0.98, "b": 0.001}, ab={"x": 0.5}))
    found = where_lost(base, policy, eps=0.01)
    assert found.lost.units == 1
    first, branch, later, other = found.lost.classes
    assert (first, later) == (0, 0)
    assert branch == pytest.approx(math.log(0.001 / 0.4))
    assert other == pytest.approx(math.log(0.5))
    assert found.lost.after_first == pytest.approx((1.0, 0.5))
    assert found.kept.classes[1] == pytest.approx(math.log(0.98 / 0.5))
    assert found.kept.after_first == (1, 1)  # its branching point is its end


def test_an_answer_written_in_another_way_is_not_lost_and_the_table_says_how_it_was_kept():
    problems = [{"A": [[1], [2]], "B": [[3]]}]
    ends = {letter: {"x": 1.0} for letter in "abc"}
    base = units_of(problems, table_model(start={"a": 0.5, "b": 0.1, "c": 0.1}, **ends))
    policy = units_of(problems, table_model(start={"a": 0.001, "b": 0.7, "c": 0.1}, **ends))
    found = where_lost(base, policy, eps=0.01)
    assert (found.lost.units, found.kept.units) == (0, 2)
    assert found.kept.rewritten * 2 == pytest.approx(math.log(0.701 / 0.6) - found.kept.classes[0] * 2)
    assert found.kept.rewritten > 1


def test_nothing_lost_and_an_only_answer_are_unknown_not_zero():
    problems = [{"A": [[1, 2]]}]
    base = units_of(problems, table_model(start={"a": 0.9}, a={"b": 0.5}, ab={"x": 1.0}))
    found = where_lost(base, base, eps=0.01)
    assert found.lost.units == 0
    assert all(math.isnan(value) for value in (found.lost.total, *found.lost.classes, *found.lost.after_first))
    assert np.isnan(found.lost.depth_d).all()
    assert (found.kept.total, found.kept.branching) == (0, 0)
    assert math.isnan(found.kept.after_first[0])  # nothing parts where there is one answer


def test_an_answer_without_texts_is_in_no_group():
    base = units_of(SINGLE, table_model(start={"a": 0.5, "b": 0.4}, a={"x": 0.9}, b={"x": 0.8}))
    longer = base._replace(
        unit_problem=np.array([0, 0, 0]), unit_answer=("A", "B", "C"), probability_u=np.append(base.probability_u, 0.0)
    )
    found = where_lost(longer, longer, eps=1e-6)
    assert (found.lost.units, found.kept.units) == (0, 2)


def test_other_texts_and_floors_that_are_none_are_refused():
    base = units_of(SINGLE, table_model(start={"a": 0.5, "b": 0.4}, a={"x": 0.9}, b={"x": 0.8}))
    with pytest.raises(ConfigError, match="same texts"):
        where_lost(base, base._replace(token_id_i=base.token_id_i + 1))
    for eps in (0, 1.5, math.nan):
        with pytest.raises(ConfigError, match="eps"):
            where_lost(base, base, eps)
