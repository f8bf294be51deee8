"""reasoning-gym tasks: golds score, junk does not, broken scorers are refused, hostile answers are only wrong."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from offleash.eval.errors import ConfigError
from offleash.eval.tasks.gym.answers import GUARDS, refused
from offleash.eval.tasks.gym.tasks import GUESSABLE, UNSUPPORTED, Gym
from offleash.eval.verify.health import bad_golds

KINDS = [
    ("chain_sum", {"min_terms": 2, "max_terms": 2}),
    ("countdown", {"min_numbers": 3, "max_numbers": 3}),
    ("dice", {}),
    ("prime_factorization", {}),
    ("graph_color", {}),
    ("game_of_life", {}),
    ("boxnet", {}),
    ("time_intervals", {}),
    ("coin_flip", {}),
    ("complex_arithmetic", {}),
    ("spell_backward", {}),
    ("simple_integration", {}),
    ("polynomial_multiplication", {}),
]


@pytest.fixture(scope="module")
def tasks() -> Iterator[dict[str, Gym]]:
    """Share one pool of workers: importing reasoning-gym takes seconds."""
    made = {name: Gym(name, size=4, seed=1, config=config, job_seconds=60) for name, config in KINDS}
    pool = made["chain_sum"].pool
    for task in made.values():
        task.pool = pool
    yield made
    pool.close()


def verdicts(task: Gym, answer: str) -> list[tuple[bool, str]]:
    found = task.verify(task.problems, [f"<answer>{answer}</answer>"] * len(task.problems))
    return [(verdict.correct, verdict.status) for verdict in found]


@pytest.mark.parametrize("name", [name for name, _ in KINDS])
def test_gold_scores_and_junk_does_not(tasks: dict[str, Gym], name: str) -> None:
    task = tasks[name]
    assert bad_golds(task) == []
    for junk in ("The answer is 17", "junk", "[]", "{}", "0", "\x00🙂"):
        assert verdicts(task, junk) == [(False, "ok")] * 4, junk


def test_a_gold_inside_a_sentence_is_not_full_marks(tasks: dict[str, Gym]) -> None:
    task = tasks["chain_sum"]
    found = task.verify(task.problems, [f"<answer>The answer is {problem.gold}</answer>" for problem in task.problems])
    assert not any(verdict.correct for verdict in found)


def test_many_answers_may_be_right_and_count_as_one_unit(tasks: dict[str, Gym]) -> None:
    task = tasks["countdown"]
    problem = task.problems[0]
    spellings = [problem.gold, f"({problem.gold})", problem.gold.replace(" ", "")]
    found = task.verify([problem] * 3, [f"\\boxed{{{spelling}}}" for spelling in spellings])
    assert [verdict.correct for verdict in found] == [True] * 3
    assert {verdict.answer for verdict in found} == {problem.gold}
    assert {verdict.extracted_by for verdict in found} == {"boxed"}
    assert task.correct_answers(problem) is None


def test_the_papers_spellings_are_accepted(tasks: dict[str, Gym]) -> None:
    dice = tasks["dice"]
    for problem in dice.problems:
        top, bottom = problem.gold.split("/")
        assert dice.verify([problem], [f"\\boxed{{\\frac{{{top}}}{{{bottom}}}}}"])[0].correct
    primes = tasks["prime_factorization"]
    problem = max(primes.problems, key=lambda one: len(one.gold))
    latex = problem.gold.replace("×", "\\times")
    assert primes.verify([problem], [f"<think>x</think> \\boxed{{n = {latex}}}"])[0].correct


@pytest.mark.parametrize("attack", ["9**9**9", "__import__('os').system('touch {path}')", "open('{path}','w')"])
def test_code_in_an_answer_is_never_run(tasks: dict[str, Gym], tmp_path: Path, attack: str) -> None:
    path = tmp_path / "created"
    assert verdicts(tasks["countdown"], attack.format(path=path)) == [(False, "ok")] * 4
    assert not path.exists()


def test_nearly_right_is_wrong_where_scores_are_shares(tasks: dict[str, Gym]) -> None:
    """game_of_life pays 0.99 for one wrong cell of a hundred, time_intervals for a minute of a day."""
    life = tasks["game_of_life"]
    problem = life.problems[0]
    flipped = problem.gold.replace("1", "0", 1) if "1" in problem.gold else problem.gold.replace("0", "1", 1)
    assert not life.verify([problem], [f"<answer>{flipped}</answer>"])[0].correct
    times = tasks["time_intervals"]
    for problem in times.problems:
        if (last := problem.gold[-1]).isdigit():
            near = problem.gold[:-1] + str((int(last) + 1) % 10)
            assert not times.verify([problem], [f"<answer>{near}</answer>"])[0].correct


def test_scorers_that_can_be_cheated_are_guarded(tasks: dict[str, Gym]) -> None:
    """Each of these gets full marks from the scorer itself."""
    for name, cheat in (("coin_flip", "0"), ("complex_arithmetic", "nan"), ("complex_arithmetic", "nan + nani")):
        assert verdicts(tasks[name], cheat) == [(False, "ok")] * 4, name
    task = tasks["spell_backward"]
    found = task.verify(task.problems, [f"<answer>{problem.gold} or so</answer>" for problem in task.problems])
    assert not any(verdict.correct for verdict in found)


@pytest.mark.parametrize("name", [name for name, _ in KINDS])
def test_a_list_of_guesses_is_right_for_one_gold_at_most(tasks: dict[str, Gym], name: str) -> None:
    task = tasks[name]
    golds = list(dict.fromkeys(problem.gold for problem in task.problems))
    lists = [golds, golds[::-1], golds[:2], golds[1::-1]]
    for cheat in (joint.join(some) for joint in (", ", " or ", " ", "\n", " + ") for some in lists if len(some) > 1):
        found = task.verify(task.problems, [f"<answer>{cheat}</answer>"] * len(task.problems))
        won = {problem.gold for problem, verdict in zip(task.problems, found, strict=True) if verdict.correct}
        assert len(won) <= 1, cheat
        assert all(verdict.status == "ok" for verdict in found)


def test_an_integral_in_two_variables_is_none() -> None:
    assert not GUARDS["simple_integration"]("x**2 + X**3 + C", "x**2 + C")
    assert GUARDS["intermediate_integration"]("exp(x)*sin(x) + k", "exp(x)*sin(x) + C")
    assert refused("polynomial_multiplication", "x**2 or x**3") is not None


def test_a_scorer_that_changes_its_problem_does_not_spoil_the_next_verdict(tasks: dict[str, Gym]) -> None:
    task = tasks["boxnet"]
    plans = ["[]", '[{"Agent[0.5, 0.5]": "move(box_red, target_red)"}]', "[]", "[3]", "7"]
    for _ in range(2):
        task.known.clear()
        found = [task.verify([task.problems[0]], [f"<answer>{plan}</answer>"])[0] for plan in plans]
        assert {(verdict.correct, verdict.status) for verdict in found} == {(False, "ok")}


def test_every_case_has_its_status(tasks: dict[str, Gym]) -> None:
    task = tasks["chain_sum"]
    gold = f"<answer>{task.problems[0].gold}</answer>"
    completions = [gold, "none", "none", f"<think>{gold}", f"<think>no</think>{task.problems[0].gold}"]
    found = task.verify([task.problems[0]] * 5, completions, [False, False, True, False, False])
    assert [(v.correct, v.status, v.extracted_by) for v in found] == [
        (True, "ok", "answer_tag"),
        (False, "no_answer", ""),
        (False, "truncated", ""),
        (False, "no_answer", ""),
        (True, "ok", "after_think"),
    ]


def test_each_distinct_answer_is_scored_once(tasks: dict[str, Gym]) -> None:
    task = tasks["chain_sum"]
    asked: list[int] = []
    real = task.pool

    class Counting:
        def map(self, jobs: list[object]) -> object:
            asked.append(len(jobs))
            return real.map(jobs)

    task.pool = Counting()  # type: ignore[assignment]
    task.known.clear()
    try:
        task.verify([task.problems[0]] * 1000, [f"<answer>{i % 5}</answer>" for i in range(1000)])
        task.verify([task.problems[0]] * 1000, [f"<answer>{i % 5}</answer>" for i in range(1000)])
    finally:
        task.pool = real
    assert asked == [5, 0]


def test_problems_are_the_same_for_the_same_seed(tasks: dict[str, Gym]) -> None:
    again = Gym("chain_sum", size=4, seed=1, config=dict(KINDS[0][1]))
    assert [problem.prompt for problem in again.problems] == [problem.prompt for problem in tasks["chain_sum"].problems]
    other = Gym("chain_sum", size=4, seed=2, config=dict(KINDS[0][1]))
    assert other.problems[0].id == "chain_sum/2/0"
    with pytest.raises(ConfigError, match=r"'chain_sum/2/0'.*gym/chain_sum"):
        tasks["chain_sum"].verify(other.problems, ["<answer>1</answer>"] * 4)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_broken_scorers_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigError, match=UNSUPPORTED[name][:20]):
        Gym(name)


def test_unknown_names_and_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="no_such_task"):
        Gym("no_such_task")
    with pytest.raises(ConfigError, match="no_such_setting"):
        Gym("chain_sum", config={"no_such_setting": 1})


def test_guessable_tasks_say_so() -> None:
    assert "guessing" in Gym("syllogism", size=1).note
    assert Gym("chain_sum", size=1).note == ""
    assert {"syllogism", "circuit_logic", "course_schedule"} <= set(GUESSABLE)
