"""Base anchoring and rehearsal: the divergences in closed form, and what they do to a real run."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from offleash.eval.errors import ConfigError
from offleash.train.explorers import load_explorers
from offleash.train.explorers.samples.anchor import DIVERGENCES, Anchor, forward_k3, js
from offleash.train.explorers.samples.rehearsal import Rehearsal
from offleash.train.explorers.samples.rehearsing import Sample

BASE = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
POLICY = torch.tensor([0.1, 0.6, 0.05, 0.25], dtype=torch.float64)
SMALL = {"problems": 8, "k": 4, "batch": 8}


@pytest.mark.parametrize("divergence", [forward_k3, js])
def test_a_divergence_is_zero_and_least_where_policy_and_base_agree(divergence) -> None:
    lb = BASE.log()
    assert torch.equal(divergence(lb, lb), torch.zeros(4, dtype=torch.float64))
    for shift in (-2.0, -0.1, 0.1, 2.0):
        assert (divergence(lb + shift, lb) > 0).all()


@pytest.mark.parametrize(
    ("divergence", "closed"),
    [(forward_k3, lambda u: u - 1), (js, lambda u: u * (2 * u / (u + 1)).log())],
)
def test_its_gradient_is_the_closed_form(divergence, closed) -> None:
    lp = POLICY.log().requires_grad_()
    divergence(lp, BASE.log()).sum().backward()
    assert torch.allclose(lp.grad, closed(POLICY / BASE))


def test_over_the_bases_own_tokens_they_are_the_divergences_they_are_named_after() -> None:
    means = {kind: (BASE * f(POLICY.log(), BASE.log())).sum() for kind, f in DIVERGENCES.items()}
    kl = (BASE * (BASE / POLICY).log()).sum()
    middle = (BASE + POLICY) / 2
    twice_js = (BASE * (BASE / middle).log()).sum() + (POLICY * (POLICY / middle).log()).sum()
    assert means["forward"].item() == pytest.approx(kl.item())
    assert means["js"].item() == pytest.approx(twice_js.item())


def test_the_gradient_of_the_forward_kl_to_a_softmax_policy_is_policy_less_base() -> None:
    logits = POLICY.log().clone().requires_grad_()
    (BASE * forward_k3(logits.log_softmax(0), BASE.log())).sum().backward()
    assert torch.allclose(logits.grad, POLICY - BASE)


@pytest.fixture
def placed(stand_in_trainer: Any) -> Any:
    def make(anchor: Anchor, rank: int, ranks: int) -> Anchor:
        accelerator = SimpleNamespace(num_processes=ranks, process_index=rank)
        anchor.trainer = stand_in_trainer({"seed": 3, "per_device_train_batch_size": 32}, accelerator=accelerator)
        anchor.samples = [Sample([1], [i] * (1 + i % 3)) for i in range(30)]
        anchor.weights = np.full(30, 1 / 30)
        return anchor

    return make


def test_the_ranks_rehearse_parts_of_the_batch_that_one_rank_would(placed) -> None:
    whole, drawn = placed(Anchor(batch=6), 0, 1)._share(5)
    parts = [placed(Anchor(batch=6), rank, 2)._share(5) for rank in (0, 1)]
    assert [row for rows, _ in parts for row in rows] == whole == drawn
    assert all(of_all == drawn for _, of_all in parts)


def test_the_loss_is_the_mean_over_tokens_of_all_ranks(placed) -> None:
    rows, drawn = placed(Anchor(batch=6), 1, 2)._share(5)
    weights = Anchor().row_weights(rows, drawn)
    tokens = sum(len(row.completion_ids) for row in drawn)
    assert weights == [1 / tokens] * 3


def test_the_rehearsal_depends_on_step_and_micro_batch_only(placed) -> None:
    anchor, resumed = placed(Anchor(batch=6), 0, 1), placed(Anchor(batch=6), 0, 1)
    first, second, next_step = anchor._share(5), anchor._share(5), anchor._share(6)
    assert first != second != next_step
    assert resumed._share(6) == next_step
    assert resumed._share(5) == first


def test_by_unit_every_distinct_answer_weighs_the_same_and_by_sample_every_sample() -> None:
    chosen = [
        SimpleNamespace(problem=SimpleNamespace(id="p"), answers=("a", "a", "a", "b")),
        SimpleNamespace(problem=SimpleNamespace(id="q"), answers=("a",)),
    ]
    assert Anchor(weighting="unit")._weights(chosen) == pytest.approx([1 / 9, 1 / 9, 1 / 9, 1 / 3, 1 / 3])
    assert Anchor(weighting="sample")._weights(chosen) == pytest.approx([0.2] * 5)


@pytest.mark.long
def test_a_problem_that_the_base_solves_too_often_is_not_anchored(make_trainer) -> None:
    everything, rare = Anchor(problems=32, k=4, batch=4), Anchor(problems=32, k=4, batch=4, gate=0.25)
    for name, anchor in (("all", everything), ("rare", rare)):
        make_trainer(name, [anchor], max_steps=1).train()
    assert 0 < len(rare.samples) < len(everything.samples)
    assert len({tuple(row.prompt_ids) for row in rare.samples}) == len(rare.samples)  # one of four draws each
    with pytest.raises(ConfigError, match="problems, k or gate"):
        make_trainer("none", [Anchor(problems=32, k=4, gate=0.1)], max_steps=1).train()


@pytest.mark.long
def test_what_is_rehearsed_are_verified_completions_that_end(make_trainer) -> None:
    anchor = Anchor(**SMALL)
    trainer = make_trainer("run", [anchor], max_steps=1)
    trainer.train()
    task, tokenizer = trainer.verifier.task, trainer._tokenizer
    prompt_ids = trainer._tokenize_prompts([problem.prompt for problem in task.problems])[0]
    problems = {tuple(ids): problem for ids, problem in zip(prompt_ids, task.problems, strict=True)}
    assert anchor.samples
    for row in anchor.samples:
        text = tokenizer.decode(row.completion_ids, skip_special_tokens=True)
        assert task.verify([problems[tuple(row.prompt_ids)]], [text])[0].correct
        assert row.completion_ids[-1] in trainer.eos_token_ids


@pytest.mark.long
def test_at_the_base_itself_forward_and_js_have_no_loss_and_no_gradient(make_trainer, trajectory) -> None:
    plain = make_trainer("plain", [], max_steps=1)
    plain.train()
    for kind in ("forward", "js"):
        trainer = make_trainer(kind, [Anchor(eta=10.0, kind=kind, **SMALL)], max_steps=1)
        trainer.train()
        (row,) = trajectory(trainer)
        assert row["explorer/extra_loss"] == pytest.approx(0, abs=1e-5)
        assert row["grad_norm"] == pytest.approx(trajectory(plain)[0]["grad_norm"], rel=1e-3)
    pulled = make_trainer("rehearsal", [Rehearsal(eta=10.0, **SMALL)], max_steps=1)
    pulled.train()
    assert trajectory(pulled)[0]["grad_norm"] > 2 * trajectory(plain)[0]["grad_norm"]


@pytest.mark.long
def test_a_strong_anchor_keeps_the_policy_near_the_base(make_trainer, trajectory) -> None:
    settings = {"max_steps": 6, "learning_rate": 2e-3}
    free = make_trainer("free", [], **settings)
    free.train()
    held = make_trainer("held", [Anchor(eta=20.0, problems=32, k=8, batch=32)], **settings)
    held.train()
    assert trajectory(held)[-1]["kl"] < 0.5 * trajectory(free)[-1]["kl"]


@pytest.mark.long
def test_with_eta_0_the_trajectory_is_that_of_a_run_without_it(make_trainer, trajectory) -> None:
    runs, idle = {}, Anchor(**SMALL)
    idle.eta = 0.0  # which a recipe cannot say
    for name, explorers in (("plain", []), ("idle", [idle])):
        trainer = make_trainer(name, explorers, max_steps=3)
        trainer.train()
        runs[name] = [{k: v for k, v in r.items() if not k.startswith("explorer/")} for r in trajectory(trainer)]
    assert runs["idle"] == runs["plain"]


def test_a_recipe_can_set_every_argument() -> None:
    (anchor,) = load_explorers({"anchor": {"kind": "js", "eta": 0.2, "weighting": "unit", "gate": 0.5, **SMALL}})
    assert (anchor.kind, anchor.eta, anchor.weighting, anchor.gate, anchor.k) == ("js", 0.2, "unit", 0.5, 4)


def test_the_former_name_of_rehearsal_is_refused_with_the_new_one() -> None:
    with pytest.raises(ConfigError, match="name it rehearsal"):
        Anchor(kind="nll")


@pytest.mark.parametrize("bad", [{"kind": "reverse"}, {"weighting": "rare"}, {"k": 0}, {"batch": 0}])
def test_arguments_that_cannot_be_used_are_refused(bad) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Anchor(**bad)


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["cpu_two_processes", "cpu_zero3"])
def test_two_ranks_rehearse_together(launch, logged, processes, tmp_path) -> None:
    explorer = '{"anchor": {"problems": 8, "k": 4, "batch": 6, "eta": 1.0}}'
    settings = {"max_steps": 3, "per_device_train_batch_size": 12, "save_steps": 3, "monitor_every": 0}
    done = launch(tmp_path / "run", processes, explorer=explorer, **settings)
    assert done.returncode == 0, done.stderr[-4000:]
    losses = [row["explorer/extra_loss"] for row in logged(tmp_path / "run", 3) if "reward" in row]
    assert losses[0] == pytest.approx(0, abs=1e-5)
    assert losses[2] > 1e-4
