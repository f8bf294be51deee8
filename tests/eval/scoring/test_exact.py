"""Every sampled estimate against the exact value, on the real trained lab model."""

import math

import numpy as np
import pytest
import torch

from offleash.eval.scoring.exact import exact_units
from offleash.eval.stats.noise import noise_test
from offleash.eval.stats.passk import pass_at_k
from offleash.eval.stats.posterior import posterior_dynamics
from offleash.eval.stats.support import CELLS, METRICS, detection_limit, dynamics, dynamics_above
from offleash.eval.tasks.countdown import Countdown

K = 1024
LENGTH = 20


class Spellings(Countdown):
    """Each spelling is a unit: several to a problem, which three numbers rarely have solutions for."""

    def correct_answers(self, problem):
        answers = super().correct_answers(problem)
        return tuple(text for answer in answers for text in super(Spellings, self).spellings(problem, answer))

    def spellings(self, problem, answer):
        return (answer,)


@pytest.fixture(scope="module")
def task():
    return Spellings(split="probe", n=24, strict=True)


@pytest.fixture(scope="module")
def exact(lab_model, task):
    model, tokenizer = lab_model
    return exact_units(model, tokenizer, task, task.problems, max_new_tokens=LENGTH)


def sample_hits(lab_model, task, k, seed):
    """Hits per unit and correct samples per problem, drawn with transformers and verified by the task."""
    model, tokenizer = lab_model
    hits, correct = [], []
    torch.manual_seed(seed)
    for problem in task.problems:
        ids = torch.tensor([tokenizer(problem.prompt)["input_ids"]] * k)
        with torch.no_grad():
            out = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=LENGTH,
                pad_token_id=tokenizer.pad_token_id,
            )[:, ids.shape[1] :]
        ended = (out == tokenizer.eos_token_id).any(1).tolist()
        texts = tokenizer.batch_decode(out, skip_special_tokens=True)
        verdicts = task.verify([problem] * k, texts, [not e for e in ended])
        answers = [verdict.spelling for verdict in verdicts if verdict.correct]
        hits.append([answers.count(answer) for answer in task.correct_answers(problem)])
        correct.append(len(answers))
    return np.array([h for row in hits for h in row]), np.array(correct)


@pytest.fixture(scope="module")
def sampled(lab_model, task):
    return sample_hits(lab_model, task, K, seed=1)


@pytest.fixture(scope="module")
def sampled_again(lab_model, task):
    return sample_hits(lab_model, task, K, seed=2)


def test_the_probabilities_of_a_problems_answers_are_a_part_of_one(exact, task):
    per_problem = np.bincount(exact.unit_problem, exact.probability_u)
    assert per_problem.max() <= 1
    assert per_problem.min() > 0
    assert len(exact.probability_u) == sum(len(task.correct_answers(p)) for p in task.problems)


def test_a_solution_is_as_probable_as_its_spellings_together(exact, lab_model, task):
    solutions = Countdown(split="probe", n=24, strict=True)
    whole = exact_units(*lab_model, solutions, task.problems[:8], max_new_tokens=LENGTH)
    text_of = dict(zip(zip(exact.unit_problem, exact.unit_answer, strict=True), exact.probability_u, strict=True))
    for p, answer, probability in zip(*whole, strict=True):
        parts = [text_of[p, text] for text in solutions.spellings(task.problems[p], answer)]
        assert probability == pytest.approx(sum(parts), rel=1e-5)
    assert max(len(task.correct_answers(one)) for one in task.problems[:8]) > 4


def test_sampled_hits_agree_with_the_exact_probability_within_binomial_error(exact, sampled):
    hits, _ = sampled
    p = exact.probability_u
    z = (hits - K * p) / np.sqrt(K * p * (1 - p) + 1e-12)
    regular = K * p > 5
    assert regular.sum() > 50
    assert np.abs(z[regular]).max() < 4.5
    # The sum of squares of that many standard normals: a bias of one percent in p would show.
    assert (z[regular] ** 2).sum() == pytest.approx(regular.sum(), abs=4 * math.sqrt(2 * regular.sum()))


def test_sampled_pass_at_k_agrees_with_the_closed_form(exact, sampled):
    _, correct = sampled
    p = np.bincount(exact.unit_problem, exact.probability_u)
    for k in (1, 4, 16, 64):
        estimate = pass_at_k(correct, np.full(len(correct), K), [k])[:, 0]
        spread = np.sqrt(k * p * (1 - p) / K) * (1 - p) ** (k - 1) * math.sqrt(k) + 1e-3
        assert np.all(np.abs(estimate - (1 - (1 - p) ** k)) < 5 * spread), k
    assert exact.pass_at_1() == pytest.approx(p.mean())


def test_support_by_sampling_agrees_with_support_above_the_floor_as_k_grows(exact, sampled):
    hits, _ = sampled
    p = exact.probability_u
    missed = []
    for k in (16, 64, 256, 1024):
        above = p > detection_limit(k)
        # In the first k draws a unit above the detection limit is missed with probability below 5 %.
        rng = np.random.default_rng(k)
        seen = rng.hypergeometric(hits, K - hits, k) > 0
        assert np.mean(~seen[above]) < 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / above.sum())
        missed.append(np.mean(~seen))
    assert missed == sorted(missed, reverse=True)
    assert missed[-1] < missed[0]


def test_a_policy_equal_to_the_base_shows_no_excess_shrinkage(exact, sampled, sampled_again):
    n = np.full(len(exact.probability_u), K)
    test = noise_test(sampled[0], sampled_again[0], n, n, exact.unit_problem)
    assert test.shrunk.p > 0.01
    assert test.expanded.p > 0.01
    # and a policy that really lost every tenth unit does
    rng = np.random.default_rng(0)
    lost = np.where(rng.random(len(n)) < 0.1, 0, sampled_again[0])
    planted = noise_test(sampled[0], lost, n, n, exact.unit_problem)
    assert planted.shrunk.p < 1e-6
    assert planted.shrunk.excess > 5
    assert dynamics(sampled[0], lost).srr < 0.97


def sharpened(exact):
    """The units' probabilities under a policy whose mass moved to each problem's best answers, as RL moves it."""
    scale = 2 * np.bincount(exact.unit_problem, exact.probability_u)
    powered = exact.probability_u**4
    share = powered / np.bincount(exact.unit_problem, powered)[exact.unit_problem]
    return share * np.minimum(0.95, scale)[exact.unit_problem]


def draw_hits(rng, probability_u, chosen, unit_problem, n):
    """n samples of each chosen problem, its answers competing for them."""
    rows = []
    for p in chosen:
        probability = probability_u[unit_problem == p]
        rows.append(rng.multinomial(n, [*probability, max(0.0, 1 - probability.sum())])[:-1])
    return np.concatenate(rows)


@pytest.mark.parametrize("n", [64, 256])
def test_empirical_bayes_tables_cover_the_exact_ones_where_counts_do_not(exact, n):
    base, policy, of = exact.probability_u, sharpened(exact), exact.unit_problem
    problems, trials, epsilons = int(of.max()) + 1, 30, [1 / 512, 1 / 64, 1 / 32, 1 / 8]
    tables = [dynamics_above(*(np.round(1e12 * p).astype(int) for p in (base, policy)), 10**12, 10**12, eps)
              for eps in epsilons]  # fmt: skip
    truths = [{name: getattr(table, name) for name in (*CELLS, *METRICS)} for table in tables]
    covered, values, counted = dict.fromkeys(truths[0], 0), [], []
    rng = np.random.default_rng(n)
    for _ in range(trials):
        chosen = rng.integers(0, problems, problems)  # problems are redrawn: that is what the intervals are about
        sizes = np.bincount(of)[chosen]
        hits = [draw_hits(rng, side, chosen, of, n) for side in (base, policy)]
        problem = np.repeat(np.arange(problems), sizes)
        found = posterior_dynamics(*hits, n, n, epsilons, problem, rng=rng, resamples=150)
        for result, truth in zip(found, truths, strict=True):
            for name, value in truth.items():
                covered[name] += math.isnan(value) or result[name].low - 1e-9 <= value <= result[name].high + 1e-9
        values.append([result["nscr"].value for result in found])
        counted.append([dynamics_above(*hits, n, n, eps).nscr for eps in epsilons])
    share = {name: count / trials / len(epsilons) for name, count in covered.items()}
    assert min(share.values()) > 0.88, share
    truth = [table.nscr for table in tables]
    bias, count_bias = (np.abs(np.mean(rows, axis=0) - truth) for rows in (values, counted))
    assert bias.max() < 0.08, bias
    assert bias.mean() < count_bias.mean(), (bias, count_bias)
