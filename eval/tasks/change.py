"""Making change: reach a total with coins of given values, with the running totals written out before the answer.

The prompt `3 5 8 = 24:` gives the values of the coins and the total. A completion such as `8>16>21>24|3 5 8 8` is a
chain of running totals, one coin more at each, a bar, and the coins used, smallest first. Every coin may be used often,
`max_coins` in all.

The answer is the list of coins. A completion is judged whole: it is correct if the chain starts at a coin's value, each
step adds one, it ends at the total, and its coins are those of the answer. A wrong chain before coins that do add up is
wrong, under the answer's name with the chain appended (`3 5 8 8 by 8>17>24`), so that an answer's name says whether it
is correct. There is no other way to write a number or a list: no spaces more, no leading zeros. So the texts of an
answer are the orders in which its coins can be added, each a spelling, and all of them can be listed.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations_with_replacement, pairwise

import numpy as np

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem, Verdict
from offleash.eval.tasks.generated import check_draw, check_integer, draw, take

MAX_VALUE = 99
MAX_VALUES = 6
MAX_COINS = 6  # seven different coins have thousands of orders
MAX_CHARS = 100

_NUMBER = "[1-9][0-9]{0,2}"
_COMPLETION = re.compile(rf"{_NUMBER}(?:>{_NUMBER})*\|{_NUMBER}(?: {_NUMBER})*", re.ASCII)

Coins = tuple[int, ...]


@lru_cache(maxsize=1 << 16)
def _solutions(values: Coins, total: int, max_coins: int) -> tuple[Coins, ...]:
    """Every multiset of at most so many coins with that total; each sorted, in lexical order of their texts."""
    found = (coins for size in range(1, max_coins + 1) for coins in _multisets(values, size).get(total, ()))
    return tuple(sorted(found, key=_answer))


@lru_cache(maxsize=4096)
def _multisets(values: Coins, size: int) -> dict[int, list[Coins]]:
    by_total: dict[int, list[Coins]] = {}
    for coins in combinations_with_replacement(values, size):
        by_total.setdefault(sum(coins), []).append(coins)
    return by_total


def _orders(coins: Coins) -> Iterator[Coins]:
    """Every different order of the coins."""
    if not coins:
        yield ()
        return
    for first in sorted(set(coins)):
        rest = list(coins)
        rest.remove(first)
        for order in _orders(tuple(rest)):
            yield (first, *order)


def _chain(order: Coins) -> str:
    return ">".join(str(sum(order[: i + 1])) for i in range(len(order)))


def _answer(coins: Sequence[int]) -> str:
    return " ".join(map(str, coins))


class Change:
    """`n` problems of one split, each with at least `min_answers` different ways to reach the total.

    There are `values` different values from 2 to `max_value`. The splits are disjoint whatever the seed and size, and
    a bigger `n` only adds problems at the end. `meta` holds `values`, smallest first, `total` and `max_coins`.
    """

    name = "change"
    version = "1"

    def __init__(
        self,
        split: str = "probe",
        n: int = 128,
        seed: int = 0,
        values: int = 4,
        max_value: int = 15,
        max_coins: int = 5,
        min_answers: int = 3,
    ) -> None:
        check_draw(self.name, split, n, seed)
        for name, value, low, high in (
            ("values", values, 1, MAX_VALUES),
            ("max_value", max_value, 2, MAX_VALUE),
            ("max_coins", max_coins, 1, MAX_COINS),
            ("min_answers", min_answers, 1, None),
        ):
            check_integer(self.name, name, value, low, high)
        if values > max_value - 1:
            raise ConfigError(f"{self.name}: there are no {values} different values from 2 to {max_value}")
        self.split = split

        def propose(rng: np.random.Generator) -> tuple[str, tuple[Coins, int]]:
            coins = tuple(sorted(int(v) + 2 for v in rng.choice(max_value - 1, values, replace=False)))
            total = sum(int(coin) for coin in rng.choice(coins, int(rng.integers(1, max_coins + 1))))
            return f"{_answer(coins)} = {total}:", (coins, total)

        def keep(drawn: tuple[Coins, int]) -> bool:
            return len(_solutions(*drawn, max_coins)) >= min_answers

        limits = f"{values} values up to {max_value} and {min_answers} or more answers of up to {max_coins} coins"
        drawn = take(self.name, split, n, draw(split, seed, propose, keep), limits)
        self.problems: list[Problem] = [_problem(*one, max_coins) for one in drawn]

    def verify(
        self, problems: Sequence[Problem], completions: Sequence[str], truncated: Sequence[bool] | None = None
    ) -> list[Verdict]:
        """One verdict per pair. A truncated completion has no answer."""
        flags = [False] * len(completions) if truncated is None else truncated
        return [_judge(*one) for one in zip(problems, completions, flags, strict=True)]

    def correct_answers(self, problem: Problem) -> tuple[str, ...]:
        """All lists of coins that reach the total, in the order of their texts."""
        meta = problem.meta
        return tuple(map(_answer, _solutions(tuple(meta["values"]), meta["total"], meta["max_coins"])))

    def spellings(self, problem: Problem, answer: str) -> tuple[str, ...]:
        """The texts of an answer: one for every order of its coins."""
        coins = tuple(int(coin) for coin in answer.split(" "))
        return tuple(f"{_chain(order)}|{answer}" for order in _orders(coins))


def _problem(values: Coins, total: int, max_coins: int) -> Problem:
    coins = _solutions(values, total, max_coins)[0]
    return Problem(
        id="-".join(["change", *map(str, values), str(total)]),
        prompt=f"{_answer(values)} = {total}:",
        gold=f"{_chain(coins)}|{_answer(coins)}",
        meta={"values": list(values), "total": total, "max_coins": max_coins},
    )


def _judge(problem: Problem, completion: str, truncated: bool) -> Verdict:
    if truncated:
        return Verdict(None, False, "truncated")
    if len(completion) > MAX_CHARS or not _COMPLETION.fullmatch(completion):
        return Verdict(None, False, "no_answer")
    chain, answer = completion.split("|")
    totals, coins = [int(part) for part in chain.split(">")], [int(part) for part in answer.split(" ")]
    added = [totals[0], *(after - before for before, after in pairwise(totals))]
    agrees = Counter(added) == Counter(coins) and coins == sorted(coins)
    meta = problem.meta
    allowed = set(coins) <= set(meta["values"]) and len(coins) <= meta["max_coins"]
    correct = agrees and allowed and totals[-1] == meta["total"]
    return Verdict(answer if agrees else f"{answer} by {chain}", correct, "ok", "chain", spelling=chain)
