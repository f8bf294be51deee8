"""Where in a text the probability of an answer changes, and whether a lost answer can still be completed.

Base and policy are compared token by token on the enumerated texts of every correct answer. With q and p for their
probabilities of a unit u, q(t|u) for the base's choice among the unit's texts t, and t_i for the tokens of t:

    ln p(u)/q(u)  =  sum over i of E[ ln p(t_i | t_<i) / q(t_i | t_<i) ]  +  KL( q(.|u) || p(.|u) )

with the expectation over q(.|u): the chain rule gives ln p(t)/q(t) = ln p(u)/q(u) + ln p(t|u)/q(t|u), and its mean over
q(.|u) is the line above. So the shift of a unit is a sum over positions, plus what the policy recovers by writing the
same answer in other ways; the latter is never negative, and 0 where an answer has one text.

Positions of a text: its first token; its branching points, where a text of another correct answer shares everything
before and differs; all other tokens. The first token may be a branching point as well and is counted as the first
token.

A lost answer is still executable if the policy, put on its way, completes it. "On its way" is the text up to and
including its first branching point, or its last one, after which no other correct answer is left. The probability of
completing is exact: the sum over the texts that go through that point.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offleash.eval.errors import ConfigError
from offleash.eval.scoring.exact import ExactUnits

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CLASSES = ("first token", "first branching point", "later branching points", "other tokens")
_FIRST, _BRANCH, _LATER, _OTHER = range(len(CLASSES))


class Paths(NamedTuple):
    """The trees that the texts of each problem form. One entry per token of every text (`_i`) or per text (`_t`)."""

    text_i: Ints
    depth_i: Ints
    node_i: Ints
    """The prefix that ends with this token, numbered: equal for texts of a problem that share it."""
    class_i: Ints
    """Index into CLASSES."""
    first_t: Ints
    """The entry of the text's first branching point, -1 if it has none."""
    last_t: Ints


class Shift(NamedTuple):
    """Of each unit. NaN where the base has no probability."""

    total_u: Floats
    """ln policy/base."""
    class_uc: Floats
    """The part of each of CLASSES."""
    depth_ud: Floats
    """The part of each token index."""
    rewritten_u: Floats
    """What other texts of the same answer recover."""


class Completion(NamedTuple):
    """Of each unit, a prefix of it given: the chance of completing it, and of any correct answer. NaN: no prefix."""

    own_u: Floats
    any_u: Floats


class Group(NamedTuple):
    """Means over some units, NaN where there is none. In each pair of completions, base first, then policy."""

    units: int
    total: float
    classes: tuple[float, ...]
    rewritten: float
    depth_d: Floats
    branching: int
    """Units with a branching point: those of problems with another correct answer."""
    after_first: tuple[float, float]
    any_after_first: tuple[float, float]
    after_last: tuple[float, float]

    @property
    def shares(self) -> tuple[float, ...]:
        """Of each of CLASSES in the shift over all positions; NaN if there is none."""
        whole = sum(self.classes)
        return tuple(part / whole if whole else float("nan") for part in self.classes)


class Where(NamedTuple):
    """Units that the base has in support at `eps`: those that the policy lost, and those that it kept."""

    eps: float
    lost: Group
    kept: Group


def where_lost(base: ExactUnits, policy: ExactUnits, eps: float = 1e-3, paths: Paths | None = None) -> Where:
    """`paths`: those of the base, if they are known already."""
    if not 0 < eps <= 1:
        raise ConfigError(f"eps must lie in (0, 1], got {eps}")
    check_same_texts(base, policy)
    paths = text_paths(base) if paths is None else paths
    moved = shift(base, policy, paths)
    done = [
        (completion(base, units, paths, paths.first_t), completion(base, units, paths, paths.last_t))
        for units in (base, policy)
    ]
    held, holds = base.probability_u >= eps, policy.probability_u >= eps
    return Where(eps, *(_group(moved, done, chosen) for chosen in (held & ~holds, held & holds)))


def pooled(found: Sequence[Where]) -> Where:
    """Of several policies of one base: counts are sums, means are over the units of all of them."""
    return Where(found[0].eps, *(_pooled([getattr(one, side) for one in found]) for side in ("lost", "kept")))


def check_same_texts(base: ExactUnits, policy: ExactUnits) -> None:
    """Raises ConfigError unless both are of the same problems, answers and tokens."""
    names = ("problem_ids", "unit_answer", "texts")
    arrays = ("unit_problem", "text_unit", "tokens_t", "token_id_i")
    same = all(getattr(base, name) == getattr(policy, name) for name in names)
    if not same or not all(np.array_equal(getattr(base, name), getattr(policy, name)) for name in arrays):
        raise ConfigError(
            "base and policy are not of the same texts: use the same task, problems, tokenizer and max_new_tokens"
        )


def text_paths(units: ExactUnits) -> Paths:
    """Level by level: the prefixes of all texts, and where answers part."""
    texts, tokens_t = len(units.texts), units.tokens_t
    start_t = np.cumsum(tokens_t) - tokens_t
    text_i = np.repeat(np.arange(texts), tokens_t)
    depth_i = np.arange(len(text_i)) - start_t[text_i]
    node_i, parts_i = np.zeros(len(text_i), dtype=np.int64), np.zeros(len(text_i), dtype=bool)
    node_t = units.unit_problem[units.text_unit]  # at depth 0 the prompt
    nodes = int(node_t.max(initial=-1)) + 1
    for depth in range(int(tokens_t.max(initial=0))):
        alive = np.flatnonzero(tokens_t > depth)
        here = start_t[alive] + depth
        child = _number(node_t[alive], units.token_id_i[here])
        parts_i[here] = _parting(node_t[alive], child, units.text_unit[alive])
        node_t[alive] = node_i[here] = nodes + child
        nodes += int(child.max()) + 1
    branch = np.flatnonzero(parts_i)
    first_t, last_t = np.full(texts, -1), np.full(texts, -1)
    first_t[text_i[branch[::-1]]], last_t[text_i[branch]] = branch[::-1], branch
    class_i = np.where(parts_i, _LATER, _OTHER)
    class_i[first_t[first_t >= 0]] = _BRANCH
    class_i[depth_i == 0] = _FIRST
    return Paths(text_i, depth_i, node_i, class_i, first_t, last_t)


def _parting(node_x: Ints, child_x: Ints, unit_x: Ints) -> NDArray[np.bool_]:
    """Whether some text of another unit is at the same node and goes to another child."""
    _, first, place_x = np.unique(_number(child_x, unit_x), return_index=True, return_inverse=True)
    node, child, unit = node_x[first], child_x[first], unit_x[first]
    # By inclusion and exclusion over the distinct (child, unit) of a node: neither this child nor this unit.
    others = _sizes(node) - _sizes(child) - _sizes(_number(node, unit)) + 1
    return np.asarray(others[place_x] > 0)


def _number(one: Ints, other: Ints) -> Ints:
    """Pairs, numbered from 0 on."""
    numbers: Ints = np.unique(one * (int(other.max(initial=0)) + 1) + other, return_inverse=True)[1]
    return numbers


def _sizes(values: Ints) -> Ints:
    """How often each value occurs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray(counts[place])


def shift(base: ExactUnits, policy: ExactUnits, paths: Paths) -> Shift:
    """The change of each unit's log-probability by position, over the base's texts of it."""
    units = len(base.unit_answer)
    weight_i = _share_of_unit(base)[paths.text_i]
    moved_i, unit_i = weight_i * (policy.token_logprob_i - base.token_logprob_i), base.text_unit[paths.text_i]
    depths = int(base.tokens_t.max(initial=0))
    known = base.probability_u > 0
    class_uc = _table(unit_i, paths.class_i, moved_i, (units, len(CLASSES)), known)
    depth_ud = _table(unit_i, paths.depth_i, moved_i, (units, depths), known)
    with np.errstate(divide="ignore", invalid="ignore"):
        total_u = np.where(known, np.log(policy.probability_u) - np.log(base.probability_u), np.nan)
    return Shift(total_u, class_uc, depth_ud, total_u - class_uc.sum(axis=1))


def completion(base: ExactUnits, units: ExactUnits, paths: Paths, at_t: Ints) -> Completion:
    """Each unit's prefixes end at the entries `at_t` and are weighted as the base weights the texts they come from."""
    total_t = np.bincount(paths.text_i, units.token_logprob_i, minlength=len(units.texts))
    done_i = np.cumsum(units.token_logprob_i)
    done_i = done_i - (done_i[np.cumsum(units.tokens_t) - 1] - total_t)[paths.text_i]
    rest_i = np.exp(total_t[paths.text_i] - done_i)
    pair_i = _number(paths.node_i, units.text_unit[paths.text_i])
    there = at_t >= 0
    entry = at_t[there]
    share, unit = _share_of_unit(base)[there], units.text_unit[there]
    known = np.zeros(len(units.unit_answer), dtype=bool)
    known[unit] = base.probability_u[unit] > 0
    own_u, any_u = (
        np.where(known, np.bincount(unit, share * np.bincount(key, rest_i)[key[entry]], minlength=known.size), np.nan)
        for key in (pair_i, paths.node_i)
    )
    return Completion(own_u, any_u)


def _share_of_unit(units: ExactUnits) -> Floats:
    """q(t|u) of each text; 0 where the unit has no probability."""
    total_t = units.probability_u[units.text_unit]
    return np.divide(np.exp(units.logprob_t), total_t, out=np.zeros(len(total_t)), where=total_t > 0)


def _table(row: Ints, column: Ints, value: Floats, shape: tuple[int, int], known: NDArray[np.bool_]) -> Floats:
    summed = np.bincount(row * shape[1] + column, value, minlength=shape[0] * shape[1]).reshape(shape)
    return np.where(known[:, None], summed, np.nan)


def _group(moved: Shift, done: list[tuple[Completion, Completion]], chosen: NDArray[np.bool_]) -> Group:
    (base_first, base_last), (policy_first, policy_last) = done
    return Group(
        units=int(chosen.sum()),
        total=_mean(moved.total_u[chosen]),
        classes=tuple(_mean(column) for column in moved.class_uc[chosen].T),
        rewritten=_mean(moved.rewritten_u[chosen]),
        depth_d=np.array([_mean(column) for column in moved.depth_ud[chosen].T]),
        branching=int(np.count_nonzero(~np.isnan(base_first.own_u[chosen]))),
        after_first=(_mean(base_first.own_u[chosen]), _mean(policy_first.own_u[chosen])),
        any_after_first=(_mean(base_first.any_u[chosen]), _mean(policy_first.any_u[chosen])),
        after_last=(_mean(base_last.own_u[chosen]), _mean(policy_last.own_u[chosen])),
    )


def _pooled(groups: Sequence[Group]) -> Group:
    units_g, branching_g = (np.array([getattr(group, name) for group in groups]) for name in ("units", "branching"))

    def mean(name: str, weight_g: Ints) -> Floats:
        """Over units: a group without any has NaN, and no weight."""
        values_gx = np.array([np.atleast_1d(getattr(group, name)) for group in groups], dtype=np.float64)
        known_gx = weight_g[:, None] * ~np.isnan(values_gx)
        total_x = (np.where(np.isnan(values_gx), 0.0, values_gx) * known_gx).sum(axis=0)
        count_x = known_gx.sum(axis=0)
        return np.divide(total_x, count_x, out=np.full(count_x.shape, np.nan), where=count_x > 0)

    def pair(name: str) -> tuple[float, float]:
        base, policy = mean(name, branching_g).tolist()
        return base, policy

    return Group(
        int(units_g.sum()),
        float(mean("total", units_g)[0]),
        tuple(mean("classes", units_g).tolist()),
        float(mean("rewritten", units_g)[0]),
        mean("depth_d", units_g),
        int(branching_g.sum()),
        pair("after_first"),
        pair("any_after_first"),
        pair("after_last"),
    )


def _mean(values: Floats) -> float:
    """Over the known ones; NaN if there is none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")
