"""The loop draws exactly what a plan lacks, whatever happens to it, and notices draws that cannot be independent."""

import random
from collections.abc import Iterable, Iterator
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offleash.eval.engines.base import Completion, Drawn, Request
from offleash.eval.errors import EngineError, PoolError, VerifyError
from offleash.eval.pool.fill import PATIENCE, Fill
from offleash.eval.pool.ledger import Block, Ledger, round_ends
from offleash.eval.pool.pool import Pool
from offleash.eval.pool.repeats import (
    RepeatTest,
    aligned_repeats,
    block_log_chance,
    clustered_repeats,
    known_repeats,
)
from offleash.eval.pool.testing import make_spec
from offleash.eval.problem import Problem, Verdict
from offleash.eval.sampling import Plan, Sampling
from offleash.eval.stats.stopping import stopped_pass_at_k

SAMPLING = Sampling(max_new_tokens=8)


class Coin:
    """A task whose problem "p7" is solved by 7 in 20 completions of the engine below; its answer is the completion."""

    name, version = "coin", "1"

    def __init__(self, n: int = 6) -> None:
        self.problems = [Problem(f"p{i}", f"{i}:", "yes") for i in range(n)]

    def verify(self, problems: Any, completions: Any, truncated: Any = None) -> list[Verdict]:
        return [Verdict(text, text.startswith("yes"), "ok") for text in completions]

    def correct_answers(self, problem: Problem) -> None:
        return None


class CoinEngine:
    """Draws from a numpy generator seeded with the request's seed; `names` ways to say yes and as many to say no."""

    name = "coin"

    def __init__(self, block: int = 16, names: int = 1000, logprobs: bool = True, shuffled: bool = False) -> None:
        self.block, self.names, self.logprobs, self.shuffled = block, names, logprobs, shuffled
        self.drawn: list[tuple[int, int, int]] = []

    def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Drawn]:
        waiting = list(requests)
        if self.shuffled:
            random.Random(5).shuffle(waiting)
        for request in waiting:
            self.drawn.append((request.problem, request.start, request.n))
            yield Drawn(request, self.completions(request, request.seed))

    def completions(self, request: Request, seed: int) -> list[Completion]:
        rng = np.random.default_rng(seed)
        rate = rate_of(request.problem)
        says = ["yes" if x < rate else "no" for x in rng.random(request.n)]
        chance = {"yes": rate / self.names, "no": (1 - rate) / self.names}
        logps = [float(np.log(chance[word])) if self.logprobs else None for word in says]
        names = rng.integers(self.names, size=request.n)
        return [Completion(f"{w}{i}", 2, logp, "stop") for w, i, logp in zip(says, names, logps, strict=True)]

    def close(self) -> None:
        pass


def rate_of(problem: int) -> float:
    return (problem % 20) / 20


def make_pool(folder: Path, task: Any, k: int = 64, successes: int | None = None, seed: int = 0) -> Pool:
    plan = Plan(successes=successes)
    spec = make_spec(task.problems, k, task=task.name, task_version=task.version, seed=seed, plan=plan, engine="coin")
    return Pool.open_or_create(folder, spec, task.problems)


def fill(pool: Pool, task: Any, engine: Any, **settings: Any) -> Any:
    prompts = [[1, 2, 3]] * len(task.problems)
    return Fill(pool, task, engine, prompts, SAMPLING, **{"save_every": 0.0, **settings}).run(progress=False)


def content(pool: Pool) -> list[dict[str, Any]]:
    return (
        Pool.open(pool.path)
        .read(["problem_id", "index", "answer", "correct", "tokens", "logprob", "completion"])
        .to_pylist()
    )


# What is drawn


def test_blocks_are_what_is_missing_in_index_order_cut_at_multiples_of_the_block_size(tmp_path: Path) -> None:
    task = Coin(2)
    pool = make_pool(tmp_path, task, k=40)
    row = {"problem_id": "p0", "answer": "a", "correct": False, "status": "ok"}
    pool.append({**{name: [value] * 17 for name, value in row.items()}, "index": list(range(17))})
    assert Ledger(pool).blocks(40, 16) == [
        Block(1, 0, 16), Block(1, 16, 16), Block(0, 17, 15), Block(0, 32, 8), Block(1, 32, 8)
    ]  # fmt: skip
    assert Ledger(pool).blocks(17, 16) == [Block(1, 0, 16), Block(1, 16, 1)]


def test_a_fixed_plan_draws_every_index_once_and_then_nothing(tmp_path: Path) -> None:
    task, engine = Coin(), CoinEngine()
    pool = make_pool(tmp_path, task, k=70)
    totals = fill(pool, task, engine)
    assert pool.is_complete
    assert pool.duplicates() == 0
    assert totals.samples == 6 * 70
    assert totals.pass_at_1 == pytest.approx(pool.hits().correct_p.mean() / 70)
    assert fill(pool, task, CoinEngine()).samples == 0
    assert [start for _, start, _ in engine.drawn] == sorted(start for _, start, _ in engine.drawn)


def test_lost_parts_are_drawn_again_and_come_out_the_same(tmp_path: Path) -> None:
    task = Coin()
    pool = make_pool(tmp_path, task, k=64)
    fill(pool, task, CoinEngine())
    before = content(pool)
    parts = sorted(tmp_path.glob("samples-*.parquet"))
    assert len(parts) > 10
    for path in parts[1::3]:
        path.unlink()
    engine = CoinEngine()
    fill(Pool.open(tmp_path), task, engine)
    assert content(pool) == before
    assert len(engine.drawn) == len(parts[1::3])


# A plan that stops early


def test_rounds_double() -> None:
    assert round_ends(200, 5) == [32, 64, 128, 200]
    assert round_ends(200, None) == [200]
    assert round_ends(8, 1) == [8]


def test_a_pool_that_stops_early_holds_the_stopped_experiment_and_nothing_more(tmp_path: Path) -> None:
    task = Coin(20)
    whole, stopped = make_pool(tmp_path / "whole", task, k=256), make_pool(tmp_path / "stopped", task, 256, successes=3)
    fill(whole, task, CoinEngine())
    totals = fill(stopped, task, CoinEngine())
    correct_pk = np.array([row["correct"] for row in content(whole)]).reshape(20, 256)
    for p, drawn in enumerate(stopped.hits().n_p):
        wins = np.flatnonzero(correct_pk[p])
        assert drawn == (wins[2] + 1 if len(wins) >= 3 else 256)
    draws, wins = stopped.hits().n_p, stopped.hits().correct_p
    expected = stopped_pass_at_k(draws, wins, [1], successes=3, cap=256).mean()  # refuses what no such plan leaves
    assert totals.pass_at_1 == pytest.approx(expected)
    kept = {(row["problem_id"], row["index"]): row for row in content(whole)}
    assert all(kept[row["problem_id"], row["index"]] == row for row in content(stopped))


def test_which_completion_comes_back_first_changes_nothing(tmp_path: Path) -> None:
    task = Coin(20)
    pools = [make_pool(tmp_path / name, task, 256, successes=3) for name in ("ordered", "shuffled")]
    for pool, shuffled in zip(pools, (False, True), strict=True):
        fill(pool, task, CoinEngine(shuffled=shuffled))
    assert content(pools[0]) == content(pools[1])


def test_pass_at_k_of_stopped_pools_is_unbiased_where_a_plain_share_is_not(tmp_path: Path) -> None:
    task, runs = Coin(20), 40
    found, shares = [], []
    for seed in range(runs):
        pool = make_pool(tmp_path / str(seed), task, 64, successes=2, seed=seed)
        fill(pool, task, CoinEngine(), save_every=1e9)
        hits = pool.hits()
        found.append(stopped_pass_at_k(hits.n_p, hits.correct_p, [1, 4], successes=2, cap=64))
        shares.append(hits.correct_p / hits.n_p)
    rate = np.array([rate_of(p) for p in range(20)])
    for column, k in enumerate((1, 4)):
        truth = 1 - (1 - rate) ** k
        spread = np.sqrt(truth * (1 - truth) / runs)  # at most: an estimate between 0 and 1
        error = np.array(found)[:, :, column].mean(0) - truth
        assert np.all(np.abs(error) <= 4.5 * spread + 1e-9)
        assert abs(error.mean()) < 4 * np.sqrt((spread**2).sum()) / 20
    bias = np.array(shares).mean(0) - rate
    assert bias.mean() > 4 * np.sqrt((rate * (1 - rate) / runs).sum()) / 20


class Broken(CoinEngine):
    """Fails on chosen (problem, start)."""

    def __init__(self, at: set[tuple[int, int]], **settings: Any) -> None:
        super().__init__(**settings)
        self.at = at

    def completions(self, request: Request, seed: int) -> list[Completion]:
        if (request.problem, request.start) in self.at:
            return [Completion("the server is gone", None, None, "error")] * request.n
        return super().completions(request, seed)


@pytest.mark.parametrize("successes", [None, 3])
def test_requests_that_fail_are_reported_and_drawn_later(tmp_path: Path, successes: int | None) -> None:
    task = Coin(20)
    good, incomplete = (make_pool(tmp_path / name, task, 64, successes) for name in ("good", "incomplete"))
    fill(good, task, CoinEngine(shuffled=True))
    with pytest.raises(EngineError, match=r"2 of \d+ .*the server is gone"):
        fill(incomplete, task, Broken({(1, 0), (2, 16)}, shuffled=True))
    assert 0 < len(content(incomplete)) < len(content(good))
    fill(incomplete, task, CoinEngine(shuffled=True))
    assert content(incomplete) == content(good)


class Flaky(Broken):
    """Requests that fail the first time."""

    def completions(self, request: Request, seed: int) -> list[Completion]:
        made = super().completions(request, seed)
        self.at.discard((request.problem, request.start))
        return made


@pytest.mark.parametrize("successes", [None, 3])
def test_requests_that_fail_once_are_asked_again_in_the_same_run(tmp_path: Path, successes: int | None) -> None:
    task = Coin(20)
    good, again = (make_pool(tmp_path / name, task, 64, successes) for name in ("good", "again"))
    fill(good, task, CoinEngine())
    fill(again, task, Flaky({(1, 0), (2, 16)}))
    assert content(again) == content(good)


def test_what_is_kept_beside_a_failed_request_is_told(tmp_path: Path) -> None:
    task = Coin(2)
    fixed, until = (make_pool(tmp_path / name, task, 64, r) for name, r in (("fixed", None), ("until", 64)))
    with pytest.raises(EngineError, match="the others are kept"):
        fill(fixed, task, Broken({(1, 16)}))
    with pytest.raises(EngineError, match="of each problem what comes before is kept"):
        fill(until, task, Broken({(1, 16)}))
    assert (len(content(fixed)), len(content(until))) == (112, 48)


def test_an_engine_that_always_fails_stops_the_run_soon(tmp_path: Path) -> None:
    task, engine = Coin(20), Broken({(p, s) for p in range(1, 20) for s in range(0, 256, 16)})
    pool = make_pool(tmp_path, task, k=256)
    with pytest.raises(EngineError, match=str(PATIENCE)):
        fill(pool, task, engine)
    assert len(engine.drawn) == PATIENCE + 1
    assert len(content(pool)) == 16


def test_a_short_count_is_never_silent(tmp_path: Path) -> None:
    class Short(CoinEngine):
        def completions(self, request: Request, seed: int) -> list[Completion]:
            return super().completions(request, seed)[:-1]

    task = Coin()
    with pytest.raises(EngineError, match=r"15 completions .* 16"):
        fill(make_pool(tmp_path, task), task, Short())


def test_an_interrupt_keeps_what_was_drawn(tmp_path: Path) -> None:
    class Interrupted(CoinEngine):
        def completions(self, request: Request, seed: int) -> list[Completion]:
            if len(self.drawn) == 8:
                raise KeyboardInterrupt
            return super().completions(request, seed)

    task = Coin()
    pool = make_pool(tmp_path, task)
    with pytest.raises(KeyboardInterrupt):
        fill(pool, task, Interrupted(), save_every=1e9)
    assert len(content(pool)) == 7 * 16


def test_parts_are_written_by_the_clock_not_by_arrivals(tmp_path: Path) -> None:
    class Stalls(CoinEngine):
        def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Drawn | None]:  # type: ignore[override]
            stream = super().generate(requests, sampling)
            yield next(stream)
            before = len(content(pool))
            for _ in range(3):
                yield None
            assert (before, len(content(pool))) == (0, 16)
            yield from stream

    task = Coin()
    pool = make_pool(tmp_path, task)
    clock = iter(range(0, 10**6, 4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offleash.eval.pool.fill.time.monotonic", lambda: float(next(clock)))
        fill(pool, task, Stalls(), save_every=10.0)
    assert pool.is_complete


def test_a_failing_verifier_stops_the_run_and_its_verdicts_are_not_kept(tmp_path: Path) -> None:
    class Sick(Coin):
        def verify(self, problems: Any, completions: Any, truncated: Any = None) -> list[Verdict]:
            return [Verdict(None, False, "error") for _ in completions]

    task = Sick()
    pool = make_pool(tmp_path, task)
    with pytest.raises(VerifyError, match="verifier"):
        fill(pool, task, CoinEngine(), save_every=1e9)
    assert content(pool) == []


# Draws that cannot be independent


class SameSeed(CoinEngine):
    """The bug that turns pass@k into pass@1: every block of a problem with the same seed."""

    def completions(self, request: Request, seed: int) -> list[Completion]:
        return super().completions(request, request.problem)


class Cached(CoinEngine):
    """A proxy that answers all copies of a prompt with one completion."""

    def completions(self, request: Request, seed: int) -> list[Completion]:
        return super().completions(request, seed)[:1] * request.n


class HalfSame(CoinEngine):
    """Every other draw of a block is the first block's."""

    def completions(self, request: Request, seed: int) -> list[Completion]:
        mine, first = super().completions(request, seed), super().completions(request, request.problem)
        return [a if i % 2 else b for i, (a, b) in enumerate(zip(mine, first, strict=True))]


class Dealt(CoinEngine):
    """A store of eight completions for each problem, dealt out from another place each time."""

    def completions(self, request: Request, seed: int) -> list[Completion]:
        place = 3 * (request.start // 8)
        return [Completion(f"no{(place + i) % 8}", 2, None, "stop") for i in range(request.n)]


@pytest.mark.parametrize("logprobs", [True, False])
def test_a_block_that_comes_twice_stops_the_run(tmp_path: Path, logprobs: bool) -> None:
    task = Coin()
    pool = make_pool(tmp_path, task)
    with pytest.raises(EngineError, match=r"16 to 31 .* 0"):
        fill(pool, task, SameSeed(logprobs=logprobs))
    assert {row["index"] for row in content(pool)} <= set(range(16))


def test_a_block_that_was_drawn_before_a_restart_stops_the_run_too(tmp_path: Path) -> None:
    task = Coin()
    pool = make_pool(tmp_path, task)
    fill_first = Broken({(p, s) for p in range(6) for s in range(16, 64, 16)})
    fill_first.completions = lambda request, seed: Broken.completions(fill_first, request, request.problem)  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="failed"):
        fill(pool, task, fill_first)
    assert len(content(pool)) == 6 * 16
    with pytest.raises(EngineError, match="from 0"):
        fill(Pool.open(tmp_path), task, SameSeed())


@pytest.mark.parametrize("engine", [Cached(), HalfSame()])
def test_repeats_beyond_chance_stop_the_run(tmp_path: Path, engine: CoinEngine) -> None:
    task = Coin()
    pool = make_pool(tmp_path, task, k=256)
    with pytest.raises(EngineError, match="repeat"):
        fill(pool, task, engine)
    assert len(content(pool)) < 6 * 48


@pytest.mark.parametrize("kind", [SameSeed, Cached, HalfSame])
@pytest.mark.parametrize("names", [3, 1000])
def test_repeats_in_small_blocks_add_up_without_log_probabilities(
    tmp_path: Path, kind: type[CoinEngine], names: int
) -> None:
    """No block of 8 is proof by itself: 8 distinct completions, the same in every block of a problem, went unseen."""
    task = Coin(12)
    pool = make_pool(tmp_path, task, k=256)
    with pytest.raises(EngineError, match="repeat beyond chance"):
        fill(pool, task, kind(block=8, names=names, logprobs=False))
    assert len(content(pool)) < 12 * 64


def test_a_small_store_dealt_out_again_and_again_stops_the_run(tmp_path: Path) -> None:
    """No two places agree beyond chance; what gives it away is that no block repeats itself."""
    task = Coin(12)
    pool = make_pool(tmp_path, task, k=256)
    with pytest.raises(EngineError, match="in other blocks and not in their own"):
        fill(pool, task, Dealt(block=8))


@pytest.mark.parametrize("names", [1, 3, 1000])
@pytest.mark.parametrize(("block", "logprobs"), [(16, True), (16, False), (8, False)])
def test_honest_draws_raise_no_alarm_however_few_the_answers(
    tmp_path: Path, names: int, block: int, logprobs: bool
) -> None:
    task = Coin(20)
    pool = make_pool(tmp_path, task, k=512)
    fill(pool, task, CoinEngine(names=names, block=block, logprobs=logprobs), save_every=0.05)
    assert pool.is_complete


def test_the_alarm_knows_the_chance_of_a_repeat() -> None:
    rng = np.random.default_rng(0)
    test = RepeatTest()
    for _ in range(200):
        draws = rng.integers(4, size=65)
        test.add(known_repeats(draws[1:] == draws[:-1], np.full(64, np.log(0.25))))
    assert test.expected == pytest.approx(200 * 16)
    assert abs(test.seen - test.expected) < 4 * np.sqrt(test.variance)
    digests = np.array([1, 1, 2, 3], dtype=np.uint64)
    assert block_log_chance(digests, np.full(4, np.nan)) == pytest.approx(np.log(0.5 * 0.5 * 0.25 * 0.25))
    assert block_log_chance(digests, np.array([-1.0, -1.0, -2.0, -3.0])) == -7.0


BLOCKS = [(123, 123), (112, 331), (111, 222), (111, 111), (123, 456)]


@pytest.mark.parametrize("blocks", BLOCKS)
def test_what_order_alone_would_give_is_that_of_all_orders(blocks: tuple[int, int]) -> None:
    left, right = (np.array(list(str(block)), dtype=np.uint64) for block in blocks)
    aligned = [np.count_nonzero(left == np.array(order)) for order in permutations(right)]
    found = aligned_repeats(left, right)
    assert found.seen == np.count_nonzero(left == right)
    assert (found.expected, found.variance) == pytest.approx((np.mean(aligned), np.var(aligned)))

    def pairs(order: Any) -> int:
        return sum(a == b for half in (order[:3], order[3:]) for a, b in combinations(half, 2))

    both = [*left, *right]
    dealt = [pairs(order) for order in permutations(both)]
    found = clustered_repeats(left, right)
    assert found.seen == pairs(both)
    assert (found.expected, found.variance) == pytest.approx((np.mean(dealt), np.var(dealt)))


def test_independent_samples_keep_the_sums_within_their_spread() -> None:
    """The alarm is at 6 standard deviations; of 1,000 honest sums none comes near, and they spread as they should."""
    rng = np.random.default_rng(3)
    scores: dict[str, list[float]] = {"aligned": [], "clustered": []}
    for _ in range(500):
        shares = rng.dirichlet(np.full(rng.integers(1, 30), rng.choice([0.1, 1.0])))
        tests = {"aligned": RepeatTest(), "clustered": RepeatTest()}
        first = rng.choice(len(shares), 8, p=shares)
        for _ in range(10):
            left, right = rng.choice(len(shares), (2, 8), p=shares)
            tests["aligned"].add(aligned_repeats(left, first))
            tests["clustered"].add(clustered_repeats(left, right))
        for name, test in tests.items():
            assert not test.is_excessive
            assert not test.is_lacking
            if test.variance > 1:
                scores[name].append((test.seen - test.expected) / np.sqrt(test.variance))
    for values in scores.values():
        assert len(values) > 100
        assert abs(np.mean(values)) < 5 / np.sqrt(len(values))
        assert 0.8 < np.std(values) < 1.2


# Settings


def test_a_pool_of_an_unknown_plan_is_refused(tmp_path: Path) -> None:
    make_pool(tmp_path, Coin())
    text = (tmp_path / "pool.json").read_text()
    for kind in ("whenever", "until"):
        (tmp_path / "pool.json").write_text(text.replace('"fixed"', f'"{kind}"'))
        with pytest.raises(PoolError, match=kind):
            Pool.open(tmp_path)


# A pool that grows


class SampleEngine(CoinEngine):
    """As engines are meant to: each sample of a request has its own seed."""

    def completions(self, request: Request, seed: int) -> list[Completion]:
        one = Request(request.problem, request.prompt, request.start, 1, seed)
        return [c for i in range(request.n) for c in super(SampleEngine, self).completions(one, seed + i)]


@pytest.mark.parametrize("successes", [None, 3])
@pytest.mark.parametrize("ks", list(permutations([5, 33, 64])))
def test_grown_in_any_order_a_pool_holds_the_samples_of_one_drawn_at_once(
    tmp_path: Path, ks: tuple[int, ...], successes: int | None
) -> None:
    task, some = Coin(8), Coin(3)
    at_once, grown = make_pool(tmp_path / "at once", task, 64, successes), tmp_path / "grown"
    fill(at_once, task, SampleEngine())
    for k, part in zip(ks, (some, task, some), strict=True):
        pool = make_pool(grown, part, k, successes)
        fill(pool, part, SampleEngine(block=8))
        assert Ledger(pool).is_complete
        assert (pool.hits().n_p <= k).all()
    last = make_pool(grown, task, 64, successes)
    fill(last, task, SampleEngine(block=16))
    assert content(last) == content(at_once)
    assert last.duplicates() == 0
