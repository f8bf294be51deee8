"""Tasks with generated problems: splits that never mix, the same problems for the same seed, refused arguments."""

from collections.abc import Callable
from itertools import combinations

import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.tasks.change import Change
from offleash.eval.tasks.colouring import Colouring
from offleash.eval.tasks.countdown import Countdown
from offleash.eval.tasks.generated import SPLITS

TASKS: dict[str, Callable[..., Colouring | Change | Countdown]] = {
    "colouring": Colouring,
    "change": Change,
    "countdown": Countdown,
}


@pytest.mark.parametrize("name", TASKS)
def test_splits_are_disjoint_across_seeds_and_hold_no_problem_twice(name: str) -> None:
    ids = {
        split: [{unordered(p.id) for p in TASKS[name](split=split, n=200, seed=seed).problems} for seed in (0, 1)]
        for split in SPLITS
    }
    assert all(len(found) == 200 for lists in ids.values() for found in lists)
    for one, other in combinations(SPLITS, 2):
        assert not set.union(*ids[one]) & set.union(*ids[other])


def unordered(problem_id: str) -> tuple[str, ...]:
    """A problem whatever the order of its numbers; the last part, which may be the target, stays where it is."""
    *parts, last = problem_id.split("-")
    return (*sorted(parts), last)


@pytest.mark.parametrize("name", TASKS)
def test_a_bigger_task_starts_with_the_smaller_one_and_a_seed_changes_it(name: str) -> None:
    make = TASKS[name]
    assert make(n=100, seed=5).problems[:30] == make(n=30, seed=5).problems
    assert make(n=30, seed=5).problems != make(n=30, seed=6).problems


PINNED = {
    "colouring": [
        "colouring-3-ab-af-bc-cd-ce-cf-df-ef",
        "colouring-3-ac-bc-be-cd-ce-cf-df-ef",
        "colouring-3-ab-ac-ae-af-be-bf-cf-de",
    ],
    "change": ["change-2-3-10-13-35", "change-2-4-13-15-49", "change-2-11-12-14-30"],
    "countdown": ["countdown-11-1-1-10", "countdown-11-13-18-185", "countdown-2-3-10-23"],
}


@pytest.mark.parametrize("name", TASKS)
def test_problems_are_the_ones_the_shipped_numbers_were_measured_on(name: str) -> None:
    """A change here (of the generator, or of numpy's stream) makes every published lab number another experiment."""
    assert [p.id for p in TASKS[name](n=3).problems] == PINNED[name]


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "test"}, "train, validation, probe"),
        ({"n": 0}, "n .*1.* 0"),
        ({"seed": -1}, "seed .*0"),
        ({"n": "6"}, "n .*'6'"),
        ({"seed": True}, "seed .*True"),
    ],
)
def test_unusable_arguments_are_refused(name: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*{message}"):
        TASKS[name](**arguments)


@pytest.mark.parametrize("name", TASKS)
def test_verify_refuses_lists_of_different_lengths(name: str) -> None:
    task = TASKS[name](n=2)
    with pytest.raises(ValueError, match="zip"):
        task.verify(task.problems, ["1"])
