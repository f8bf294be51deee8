"""What monitoring a 1.5B model costs: its share of GPU time with a fixed k, and with a plan that stops at r successes.

    python bench/monitor_share.py                       # a table
    python bench/monitor_share.py --successes 5 --every 50
    python bench/monitor_share.py --lengths pools/base      # those of a pool of yours

A simulation, made of the cost model behind `offleash check` (train/forecast) and of the code that plans the monitor's
rounds (callbacks/policy). One measurement draws 64 problems on 8 H100; the share is its time over that of the training
steps between two measurements, as `check` estimates them. Assumed:

- success rates: Beta distributions with the mean and the share of unsolved problems at k = 256 that the base has in
  Tables 4 and 5 of arXiv 2507.14843 (AIME: our guess of the latter);
- lengths: recorded ones, in `recorded_lengths.json` or in a pool, each simulated problem's drawn from those of a
  recorded problem; or (`--lengths lognormal`) with a spread of .7 of the logarithm. They are scaled to 5,000 tokens on
  average, cut at the recipe's limit, wrong completions twice as long as correct ones (before the cut);
- an engine holds as many sequences as `check` says, takes the next one when one ends, and a decoding step takes what
  `check` says for as many as are running. A round ends when the last engine has nothing left.

"before": rounds of `monitor_batch_size` per GPU, all k samples. "longer": the same samples in longer rounds, as a
colocated vLLM draws a fixed k now. "stop": until r successes, in rounds, as any engine can. "stream": until r
successes, in one stream from which draws are taken back, ordered by the rates that the base's own samples have, as a
colocated vLLM draws them; the policy's rates are taken to be the base's. "samples" and "fewer" are of the stream, draws
too many included. "oracle": exactly those samples that the plan keeps, known beforehand with their lengths, the longest
first: no way to draw this plan takes much less.
"""

import argparse
import heapq
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betaln
from transformers import AutoConfig

from offleash.callbacks.policy.early_stop import EarlyStop, next_ends
from offleash.callbacks.policy.pool import STREAM
from offleash.callbacks.policy.sampler import Round, plan_rounds
from offleash.callbacks.policy.stream import Wanted
from offleash.eval.pool.ledger import Block
from offleash.eval.pool.pool import Pool
from offleash.train.forecast.cost import forward_seconds
from offleash.train.forecast.forecast import forecast
from offleash.train.forecast.hardware import FAST, GPUS, SLOW, USUAL, Machines, Pace
from offleash.train.forecast.lengths import SPREAD, Lengths
from offleash.train.forecast.memory import HALF, cache_bytes
from offleash.train.forecast.model_size import ModelSize, measure_model
from offleash.train.recipe.config import Recipe, parse_recipe

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]

PROBLEMS, PROMPT, MEAN = 64, 256, 5000
MIXES = {"MATH-500": (0.850, 0.008), "Olympiad": (0.516, 0.120), "AIME": (0.312, 0.200)}
"""Mean rate of success, and the share of problems without a success in 256 samples."""
RECIPES = ("dapo-1.5b", "prorl-1.5b")
RECORDED = Path(__file__).parent / "recorded_lengths.json"
CONFIG = {  # of DeepSeek-R1-Distill-Qwen-1.5B
    **{"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2},
    **{"intermediate_size": 8960, "vocab_size": 151936, "tie_word_embeddings": False},
}


class Engines(NamedTuple):
    """How the GPUs generate."""

    machines: Machines
    at_once: int
    seconds: float
    """Of a decoding step with nothing running, weights read."""
    per_sequence: float
    """In addition for each running sequence, its cache read."""


class Samples(NamedTuple):
    """All that a measurement could draw."""

    correct_pk: Flags
    tokens_pk: Floats


def beta_rates(mean: float, unsolved: float, rng: np.random.Generator) -> Floats:
    """Of the Beta with this mean and E[(1 - rate)^256]; evenly spread quantiles, so that few problems are enough."""

    def missed(log_weight: float) -> float:
        a, b = mean * np.exp(log_weight), (1 - mean) * np.exp(log_weight)
        return float(np.exp(betaln(a, b + 256) - betaln(a, b)))

    weight = np.exp(brentq(lambda x: missed(x) - unsolved, -6, 6))
    many = np.sort(rng.beta(mean * weight, (1 - mean) * weight, PROBLEMS * 1000))
    return many.reshape(PROBLEMS, 1000).mean(axis=1)


Shape = Callable[[int, np.random.Generator], Floats]
"""Makes lengths of k completions of each problem; only their ratios count."""


def lognormal(k: int, rng: np.random.Generator) -> Floats:
    return np.exp(SPREAD * rng.standard_normal((PROBLEMS, k)))


def recorded(source: Path) -> Shape:
    """Lengths of completions of recorded problems: of a JSON file, or of a pool."""
    if source.is_dir():
        table = Pool.open(source).read(["problem_id", "tokens"])
        by_problem: dict[str, list[int]] = {}
        for name, tokens in zip(table["problem_id"].to_pylist(), table["tokens"].to_pylist(), strict=True):
            by_problem.setdefault(name, []).append(tokens)
        tokens_p = list(by_problem.values())
    else:
        tokens_p = json.loads(source.read_text())["tokens"]

    def shape(k: int, rng: np.random.Generator) -> Floats:
        return np.array([rng.choice(tokens_p[p % len(tokens_p)], k) for p in range(PROBLEMS)], dtype=np.float64)

    return shape


def draw(rate_p: Floats, shape: Shape, k: int, limit: int, rng: np.random.Generator) -> Samples:
    correct_pk = rng.random((PROBLEMS, k)) < rate_p[:, None]
    raw_pk = shape(k, rng) * np.where(correct_pk, 1.0, 2.0)
    scale = brentq(lambda size: float(np.minimum(size * raw_pk, limit).mean()) - min(MEAN, 0.9 * limit), 1e-3, 1e6)
    return Samples(correct_pk, np.minimum(scale * raw_pk, limit))


def round_seconds(round_: Round, tokens_pk: Floats, engines: Engines) -> float:
    """Blocks are dealt to the GPUs as the sampler does; the slowest GPU counts."""
    share = -(-len(round_.blocks) // engines.machines.gpus)
    parts = [round_.blocks[i : i + share] for i in range(0, len(round_.blocks), share)]
    return max(
        _generate(np.concatenate([tokens_pk[b.problem, b.start : b.start + b.size] for b in part]), engines)
        for part in parts
    )


def _generate(tokens: Floats, engines: Engines) -> float:
    """Sequences in order, each in the place of one that has ended; positions are counted in decoding steps."""
    running: list[float] = []
    now = seconds = 0.0
    for size in tokens:
        if len(running) == engines.at_once:
            now, seconds = _until_next(running, now, seconds, engines)
        heapq.heappush(running, now + size)
    while running:
        now, seconds = _until_next(running, now, seconds, engines)
    return seconds


def _until_next(running: list[float], now: float, seconds: float, engines: Engines) -> tuple[float, float]:
    busy = len(running)
    end = heapq.heappop(running)
    return end, seconds + (end - now) * (engines.seconds + busy * engines.per_sequence)


def fixed_plan(samples: Samples, k: int, batch: int, score_k: int, stream: int, engines: Engines) -> float:
    rounds = plan_rounds(PROBLEMS, k, score_k, batch, stream=stream)
    return sum(round_seconds(round_, samples.tokens_pk, engines) for round_ in rounds)


def stopped_plan(
    samples: Samples, k: int, successes: int, batch: int, score_k: int, engines: Engines
) -> tuple[float, int, int]:
    """Seconds, samples drawn and rounds, as `PolicyPool` draws them."""
    wins_pk = np.cumsum(samples.correct_pk, axis=1)
    drawn_p = np.zeros(PROBLEMS, dtype=np.int64)
    seconds, rounds = 0.0, 0
    while True:
        won_p = np.where(drawn_p > 0, wins_pk[np.arange(PROBLEMS), np.maximum(drawn_p - 1, 0)], 0)
        is_open = (won_p < successes) & (drawn_p < k)
        if not is_open.any():
            return seconds, int(drawn_p.sum()), rounds
        end_p = np.where(is_open, next_ends(drawn_p, won_p, successes, k, score_k), drawn_p)
        missing = [np.arange(start, end) for start, end in zip(drawn_p, end_p, strict=True)]
        for round_ in plan_rounds(PROBLEMS, k, score_k, batch, missing, stream=STREAM, successes=successes):
            seconds, rounds = seconds + round_seconds(round_, samples.tokens_pk, engines), rounds + 1
        drawn_p = end_p


class Drawn:
    """What `EarlyStop` needs of a ledger: each problem's first samples."""

    def __init__(self, samples: Samples, drawn_p: Ints, k: int, successes: int) -> None:
        self.k, self.successes, self.draws_p, self.budget_p = k, successes, drawn_p, np.full(PROBLEMS, k)
        self.sampled_pk = np.arange(k) < drawn_p[:, None]
        self.correct_p = np.count_nonzero(samples.correct_pk & self.sampled_pk, axis=1)

    def prefix(self, problem: int) -> int:
        return int(self.draws_p[problem])

    def is_done(self, problem: int) -> bool:
        return bool(self.correct_p[problem] >= self.successes or self.draws_p[problem] >= self.k)


def streamed_plan(
    samples: Samples, base: Samples, k: int, successes: int, score_k: int, engines: Engines
) -> tuple[float, int]:
    """Seconds and samples drawn, a stream on each GPU."""
    ledger: Any = Drawn(samples, np.zeros(PROBLEMS, dtype=np.int64), k, successes)
    draws_p, correct_p = stopped(base, k, successes)
    early = EarlyStop(ledger, map(str, range(PROBLEMS)), (correct_p + 0.5) / (draws_p + 1))
    round_ = early.stream(engines.machines.gpus, score_k, 0)
    assert round_ is not None
    assert round_.stream is not None
    found = [_stream(share, round_.stream.needed, samples, engines) for share in round_.stream.shares]
    return max(time for time, _ in found), round(sum(drawn for _, drawn in found))


def stopped(samples: Samples, k: int, successes: int) -> tuple[Ints, Ints]:
    """Of each problem the samples up to its last success that counts, and its successes among them."""
    wins_pk = np.cumsum(samples.correct_pk[:, :k], axis=1)
    is_done_p = wins_pk[:, -1] >= successes
    return np.where(is_done_p, (wins_pk >= successes).argmax(axis=1) + 1, k), np.minimum(wins_pk[:, -1], successes)


def oracle_plan(samples: Samples, k: int, successes: int, engines: Engines) -> float:
    draws_p, _ = stopped(samples, k, successes)
    tokens = np.sort(samples.tokens_pk[np.arange(k) < draws_p[:, None]])[::-1]
    gpus = engines.machines.gpus
    return max(_generate(tokens[gpu::gpus], engines) for gpu in range(gpus))


def _stream(
    blocks: Sequence[Block], needed: Mapping[int, int], samples: Samples, engines: Engines
) -> tuple[float, float]:
    """Seconds of one engine, and its draws, those that were taken back counted by what they had written."""
    slots = [(block.problem, block.start + i) for block in blocks for i in range(block.size)]
    wanted, running, waiting = Wanted(slots, needed), list[tuple[float, int]](), deque(range(len(slots)))
    now = seconds = tokens = 0.0
    while True:
        while waiting and len(running) < engines.at_once:
            place = waiting.popleft()
            heapq.heappush(running, (now + samples.tokens_pk[slots[place]], place))
        if not running:
            return seconds, tokens / MEAN
        busy, (end, place) = len(running), heapq.heappop(running)
        seconds += (end - now) * (engines.seconds + busy * engines.per_sequence)
        tokens, now = tokens + (end - now) * busy, end
        wanted.end([place])
        if samples.correct_pk[slots[place]] and (gone := wanted.take_back([place])):
            running = [one for one in running if one[1] not in gone]
            heapq.heapify(running)
            waiting = deque(one for one in waiting if one not in gone)


def engines_of(model: ModelSize, machines: Machines, at_once: float) -> Engines:
    bandwidth = machines.device.bandwidth * machines.pace.bandwidth
    context = PROMPT + MEAN / 2
    seconds = machines.pace.step + model.parameters * HALF / bandwidth
    return Engines(machines, int(at_once), seconds, context * cache_bytes(model, HALF) / bandwidth)


def table(
    name: str, model: ModelSize, pace: Pace, every: int, successes: int, trials: int, limit: int | None, shape: Shape
) -> list[tuple[str, float]]:
    """Printed; returned are the ratios of the first way to the last, at k = 256."""
    longest = ["--max_completion_length", str(limit)] if limit else []
    recipe = parse_recipe(["--config", f"models/{name}", "--use_cpu", "true", *longest], 8)
    machines = Machines(GPUS["H100"], 8, "zero2", pace)
    limit = recipe.training.max_completion_length
    lengths = Lengths(PROMPT, MEAN, limit)
    made = forecast(recipe, model, machines, lengths, 1024, None, PROBLEMS)
    assert made.vllm_sequences is not None
    engines = engines_of(model, machines, made.vllm_sequences * (1024 + limit) / lengths.both)
    between = every * made.step_seconds
    print(f"\n{name}: a step {made.step_seconds:.0f} s ({made.rollout_seconds:.0f} generating), "
          f"{engines.at_once} sequences at once on each GPU")  # fmt: skip
    names = ("before", "longer", "stop", "stream", "oracle", "samples")
    print(f"{'rates':10}{'k':>6}{''.join(f'{name:>9}' for name in names)}{'fewer':>7}")
    saved = []
    for mix, (mean, unsolved) in MIXES.items():
        for k in (64, 256, 1024):
            row = [
                measure(recipe, model, engines, (mean, unsolved), shape, k, successes, seed) for seed in range(trials)
            ]
            *seconds, drawn = np.mean(row, axis=0)
            shares = "".join(f"{100 * each / between:>8.1f}%" for each in seconds)
            print(f"{mix:10}{k:>6}{shares}{drawn:>9.0f}{PROBLEMS * k / drawn:>6.1f}x")
            if k == 256:
                saved.append(
                    (f"monitor: simulated time before against a stream, {mix}, k = 256", seconds[0] / seconds[3])
                )
    return saved


def measure(
    recipe: Recipe,
    model: ModelSize,
    engines: Engines,
    mix: tuple[float, float],
    shape: Shape,
    k: int,
    successes: int,
    seed: int,
) -> tuple[float, ...]:
    """Seconds in the four ways, each with its scoring, and the samples that a stream draws."""
    rng = np.random.default_rng(seed)
    run, limit = recipe.run, recipe.training.max_completion_length
    rate_p = beta_rates(*mix, rng)
    samples, base = draw(rate_p, shape, k, limit, rng), draw(rate_p, shape, k, limit, rng)
    batch, score_k = run.monitor_batch_size * engines.machines.gpus, min(run.monitor_score_k, k)

    def scoring(scored_each: int) -> float:
        scored = PROBLEMS * scored_each
        batch = recipe.training.per_device_train_batch_size
        padded = Lengths(PROMPT, MEAN, limit).padded(batch, scored / engines.machines.gpus)
        return 2 * forward_seconds(model, engines.machines, scored, padded)

    before, longer = (fixed_plan(samples, k, batch, score_k, times, engines) for times in (1, STREAM))
    stop = stopped_plan(samples, k, successes, batch, score_k, engines)[0]
    stream, drawn = streamed_plan(samples, base, k, successes, score_k, engines)
    oracle = oracle_plan(samples, k, successes, engines)
    fixed, some = scoring(score_k), scoring(min(score_k, successes))
    return before + fixed, longer + fixed, stop + some, stream + some, oracle + some, drawn


def quick() -> list[tuple[str, float]]:
    """For `make bench`."""
    model = measure_model(AutoConfig.for_model("qwen2", **CONFIG))
    return table(RECIPES[0], model, USUAL, 50, 5, 1, None, recorded(RECORDED))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--every", type=int, default=50, help="steps between measurements")
    parser.add_argument("--successes", type=int, default=5, help="successes at which a problem is done")
    parser.add_argument("--limit", type=int, help="longest completion (default: the recipe's)")
    parser.add_argument("--lengths", default=str(RECORDED), help="a pool, or 'lognormal' (default: recorded ones)")
    parser.add_argument("--trials", type=int, default=3)
    paces = {"fast": FAST, "usual": USUAL, "slow": SLOW}
    parser.add_argument("--pace", choices=paces, default="usual", help="how well the hardware is used")
    options = parser.parse_args()
    model = measure_model(AutoConfig.for_model("qwen2", **CONFIG))
    plan = f"until {options.successes} successes"
    print(f"share of monitoring in the time of training, every {options.every} steps, {plan}")
    shape = lognormal if options.lengths == "lognormal" else recorded(Path(options.lengths))
    for name in RECIPES:
        table(name, model, paces[options.pace], options.every, options.successes, options.trials, options.limit, shape)


if __name__ == "__main__":
    main()
