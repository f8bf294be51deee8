"""Every sampled estimate against the exact value, on the real trained lab model."""

import math

import numpy as np
import pytest
import torch

from offleash.eval.errors import ConfigError, PoolError
from offleash.eval.problem import Problem
from offleash.eval.scoring.exact import ExactUnits, exact_units
from offleash.eval.scoring.teacher_forcing import score
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
    return Spellings(split="probe", n=12, strict=True)


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
    solutions = Countdown(split="probe", n=12, strict=True)
    whole = exact_units(*lab_model, solutions, task.problems[:8], max_new_tokens=LENGTH)
    text_of = dict(zip(zip(exact.unit_problem, exact.unit_answer, strict=True), exact.probability_u, strict=True))
    for p, answer, probability in zip(*whole[:3], strict=True):
        parts = [text_of[p, text] for text in solutions.spellings(task.problems[p], answer)]
        assert probability == pytest.approx(sum(parts), rel=1e-5)
    assert max(len(task.correct_answers(one)) for one in task.problems[:8]) > 4


def test_a_units_probability_is_the_sum_over_its_texts_each_scored_on_its_own(lab_model, task):
    model, tokenizer = lab_model
    exact = exact_units(model, tokenizer, task, task.problems[:3])
    prompts = tokenizer([problem.prompt for problem in task.problems])["input_ids"]
    ids = [
        [*row, tokenizer.eos_token_id] for row in tokenizer(list(exact.texts), add_special_tokens=False)["input_ids"]
    ]
    alone = score(model, [prompts[exact.unit_problem[u]] for u in exact.text_unit], ids)
    np.testing.assert_allclose(exact.logprob_t / exact.tokens_t, alone.logprob_s / alone.tokens_s, atol=1e-5)
    summed = np.bincount(exact.text_unit, np.exp(alone.logprob_s), minlength=len(exact.unit_answer))
    np.testing.assert_allclose(exact.probability_u, summed, rtol=1e-4)
    assert exact.token_id_i.tolist() == [token for row in ids for token in row]
    starts = np.cumsum(exact.tokens_t) - exact.tokens_t
    np.testing.assert_allclose(np.add.reduceat(exact.token_logprob_i, starts), exact.logprob_t)


def test_a_file_holds_all_of_it(exact, tmp_path):
    exact.save(tmp_path / "step-000000.npz")
    read = ExactUnits.load(tmp_path / "step-000000.npz")
    for name, value in exact._asdict().items():
        np.testing.assert_array_equal(getattr(read, name), value)
        assert type(getattr(read, name)) is type(value), name


def test_a_file_that_holds_something_else_is_one_line(tmp_path):
    np.savez(tmp_path / "other.npz", probability_u=np.zeros(3))
    (tmp_path / "torn.npz").write_bytes(b"PK")
    for name in ("other", "torn", "absent"):
        with pytest.raises(PoolError, match=f"{name}.npz"):
            ExactUnits.load(tmp_path / f"{name}.npz")


class Listed:
    """A task of one problem with the given texts as answers."""

    def __init__(self, *texts):
        self.texts = texts
        self.problems = [Problem("p0", "4 6 2=24:", {}), Problem("p1", "4 6 3=24:", {})]

    def correct_answers(self, problem):
        return self.texts if problem.id == "p0" else ()

    def spellings(self, problem, answer):
        return (answer,)


def test_a_problem_without_answers_counts_and_a_text_that_is_too_long_has_no_probability(lab_model):
    task = Listed("4*6", "4", "4*6/2*2")
    units = exact_units(*lab_model, task, task.problems, max_new_tokens=4)
    assert units.texts == ("4*6", "4")
    assert units.probability_u[2] == 0
    assert units.pass_at_1() == pytest.approx(units.probability_u.sum() / 2)


def test_a_chat_is_not_scored_as_text(lab_model):
    task = Listed("4*6")
    chat = [Problem("p0", [{"role": "user", "content": "4 6=24:"}], "")]
    with pytest.raises(ConfigError, match="p0 is a chat"):
        exact_units(*lab_model, task, chat)


def test_two_texts_of_the_same_tokens_are_an_error_not_counted_twice(lab_model):
    task = Listed("4*6", "4*6")
    with pytest.raises(ConfigError, match="same tokens"):
        exact_units(*lab_model, task, task.problems)


@pytest.mark.long
def test_sampled_hits_agree_with_the_exact_probability_within_binomial_error(exact, sampled):
    hits, _ = sampled
    p = exact.probability_u
    z = (hits - K * p) / np.sqrt(K * p * (1 - p) + 1e-12)
    regular = K * p > 5
    assert regular.sum() > 25
    assert np.abs(z[regular]).max() < 4.5
    # The sum of squares of that many standard normals: a bias of one percent in p would show.
    assert (z[regular] ** 2).sum() == pytest.approx(regular.sum(), abs=4 * math.sqrt(2 * regular.sum()))


@pytest.mark.long
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


@pytest.mark.long
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
