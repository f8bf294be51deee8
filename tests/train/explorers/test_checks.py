"""Several explorers in one run, hooks that return invalid values, arguments out of range, keys without effect."""

from typing import Any

import pytest
import torch
from trl import GRPOConfig

from offleash.eval.errors import ConfigError
from offleash.train.explorers import load_explorers
from offleash.train.explorers.base import Explorer, normalized
from offleash.train.explorers.checks import check_chain, no_op_settings, updates_per_rollout
from offleash.train.grpo import build_trainer
from offleash.train.recipe.config import parse_recipe
from offleash.train.trainer import ExploringTrainer


class Bonus(Explorer):
    """Pays each group's first rollout, with a new tensor or in place."""

    def __init__(self, size: float = 0.1, in_place: bool = False) -> None:
        self.size, self.in_place = size, in_place

    def rewards(self, rollouts: Any) -> torch.Tensor:
        rewards_pg = rollouts.rewards_pg if self.in_place else rollouts.rewards_pg.clone()
        rewards_pg[:, 0] += self.size
        return rewards_pg


class Gift(Explorer):
    """Returns what it was built with, from the hook that it was built with."""

    def __init__(self, hook: str, value: Any) -> None:
        self.hook, self.value = hook, value

    def rewards(self, rollouts: Any) -> Any:
        return self.value if self.hook == "rewards" else rollouts.rewards_pg

    def advantages(self, rollouts: Any, advantages_pg: torch.Tensor) -> Any:
        return self.value if self.hook == "advantages" else advantages_pg

    def token_advantages(self, tokens: Any) -> Any:
        return self.value if self.hook == "token_advantages" else tokens.advantages_bt

    def extra_loss(self, tokens: Any, model: Any) -> Any:
        return self.value if self.hook == "extra_loss" else None

    def traces(self, problem_ids: Any) -> Any:
        return self.value if self.hook == "traces" else [None] * len(problem_ids)


@pytest.fixture
def advantages(rollouts):
    """What a chain of explorers makes of groups such as "1100", and what the trainer logs of it."""

    def of(explorers: list[Explorer], *groups: str, logps: Any = None) -> tuple[torch.Tensor, dict[str, list[float]]]:
        batch = rollouts(*groups, logps=logps)
        before_pg = batch.rewards_pg.clone()
        trainer = ExploringTrainer.__new__(ExploringTrainer)
        trainer.explorers, trainer.scale_rewards = explorers, "group"
        trainer._metrics = {"train": {"explorer/reward_shaped": []}}
        stock_pg = normalized(batch.rewards_pg, "group")
        kept_pg = stock_pg.clone()
        shaped_pg = trainer._advantages(batch, stock_pg)
        assert torch.equal(batch.rewards_pg.nan_to_num(-1), before_pg.nan_to_num(-1))
        assert torch.equal(stock_pg, kept_pg)
        return shaped_pg, trainer._metrics["train"]

    return of


class Once(Gift):
    """Brings traces, and draws the batch itself."""

    def collect(self, inputs: Any, explored: Any) -> Any:
        return explored(inputs)[0]


class Renamed(Explorer):
    def require(self, training: Any) -> None:
        raise AssertionError


def test_a_check_under_its_former_name_is_not_silently_lost() -> None:
    with pytest.raises(ConfigError, match=r"Renamed\.require.*check"):
        check_chain([Renamed()])


@pytest.mark.parametrize(("pair", "hook"), [((Once, Once), "collect"), ((Gift, Once), "traces")])
def test_two_that_draw_the_batch_or_bring_traces_are_refused(pair, hook) -> None:
    with pytest.raises(ConfigError, match=f"{pair[0].__name__} and {pair[1].__name__} .*{hook}"):
        check_chain([kind("rewards", None) for kind in pair])


LOGPS = [[-1.0, -2.0, -0.1, -5.0], [-0.3, -0.2, -0.4, -0.1]]


@pytest.mark.parametrize("names", [("focal", "unlikeliness"), ("unlikeliness", "focal")])
def test_advantages_are_shaped_after_rewards_whatever_the_order(names, advantages) -> None:
    alone, _ = advantages(load_explorers({"unlikeliness": {}}), "1100", "1110", logps=LOGPS)
    both, _ = advantages(load_explorers({name: {} for name in names}), "1100", "1110", logps=LOGPS)
    assert torch.allclose(both, alone * torch.tensor([[0.5**0.5], [0.25**0.5]]))


def test_changes_of_the_reward_add_up_and_are_normalised_once(advantages) -> None:
    shaped, logged = advantages([Bonus(0.5), Bonus(0.25)], "1100", "0000")
    assert torch.allclose(shaped, normalized(torch.tensor([[1.75, 1, 0, 0], [0.75, 0, 0, 0]]), "group"))
    assert logged["explorer/reward_shaped"] == [pytest.approx(3.5 / 8)]


def test_a_hook_that_works_in_place_counts_and_leaves_the_true_rewards_alone(advantages) -> None:
    in_place, _ = advantages([Bonus(in_place=True)], "1100", "x010", "1111")
    anew, _ = advantages([Bonus()], "1100", "x010", "1111")
    assert torch.equal(in_place, anew)
    assert not torch.equal(in_place, advantages([Explorer()], "1100", "x010", "1111")[0])


class AddInPlace(Explorer):
    def advantages(self, rollouts: Any, advantages_pg: torch.Tensor) -> torch.Tensor:
        rollouts.rewards_pg.zero_()
        return advantages_pg.add_(1.0)


def test_advantages_changed_in_place_leave_what_they_are_compared_with_alone(advantages) -> None:
    shaped, _ = advantages([AddInPlace()], "1100", "1111")
    assert torch.allclose(shaped, normalized(torch.tensor([[1.0, 1, 0, 0], [1, 1, 1, 1]]), "group") + 1)


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (
            ["focal", "pass_at_k"],
            "PassAtK .* Focal: list PassAtK first",
        ),
        (["ucpo", "focal", "w_reinforce"], "Ucpo and Focal: list WReinforce first"),
        (["pkpo", "pass_at_k"], "PassAtK .* Pkpo: choose one"),
        (["pass_at_k", "unlikeliness"], "PassAtK .* Unlikeliness"),
        (["unlikeliness", "pkpo"], "Pkpo .* Unlikeliness"),
    ],
)
def test_a_chain_in_which_one_would_drop_anothers_work_is_refused(names, error: str, make_trainer) -> None:
    with pytest.raises(ConfigError, match=error):
        load_explorers({name: {} for name in names})
    with pytest.raises(ConfigError, match=error):
        make_trainer("run", [explorer for name in names for explorer in load_explorers({name: {}})])


@pytest.mark.parametrize(
    "names", [["pass_at_k", "focal"], ["kl_cov", "pkpo", "ucpo"], ["entropy_advantage", "w_reinforce"]]
)
def test_an_explorer_that_computes_advantages_afresh_may_come_first_of_those_with_advantages(names) -> None:
    assert len(load_explorers({name: {} for name in names})) == len(names)


class Apart(Explorer):
    def advantages(self, rollouts: Any, advantages_pg: torch.Tensor) -> torch.Tensor:
        return advantages_pg + torch.tensor([0.3, 0.1, 0.1, 0.1])


def test_advantages_that_tell_an_all_right_group_apart_are_refused(advantages) -> None:
    advantages([Apart()], "1100", "0000")
    advantages([Apart()], "x111", "0000")
    for group in ("1111", "1x11"):
        with pytest.raises(ConfigError, match="explorer Apart: advantages"):
            advantages([Apart()], "1100", group)


@pytest.mark.parametrize("hook", ["rewards", "advantages"])
@pytest.mark.parametrize(
    ("value", "got"), [(torch.zeros(2, 1), r"\(2, 1\)"), (torch.zeros(8), r"\(8,\)"), (None, "None")]
)
def test_a_wrong_shape_of_a_batch_is_refused_by_the_hooks_name(hook: str, value: Any, got: str, advantages) -> None:
    with pytest.raises(ConfigError, match=rf"explorer Gift: {hook} .*\(2, 4\), got .*{got}"):
        advantages([Gift(hook, value)], "1100", "1000")


@pytest.mark.long
@pytest.mark.parametrize(
    ("hook", "value", "error"),
    [
        ("token_advantages", torch.zeros(32, 1), r"shape \(32, \d+\), got shape \(32, 1\)"),
        ("extra_loss", torch.zeros(1), r"shape \(\), got shape \(1,\)"),
        ("traces", [None], "for each of 8 problems, got 1"),
    ],
)
def test_a_wrong_shape_in_the_loss_is_refused_by_the_hooks_name(
    hook: str, value: Any, error: str, make_trainer
) -> None:
    with pytest.raises(ConfigError, match=rf"explorer Gift: {hook} .*{error}"):
        make_trainer("run", [Gift(hook, value)], max_steps=1).train()


class Louder(Explorer):
    """Adds to every token's advantage."""

    def token_advantages(self, tokens: Any) -> torch.Tensor:
        return tokens.advantages_bt + 0.25


@pytest.mark.long
def test_what_is_done_to_token_advantages_is_logged_under_a_key_of_its_own(make_trainer, trajectory) -> None:
    trainer = make_trainer("run", [Louder()], max_steps=1)
    trainer.train()
    (row,) = trajectory(trainer)
    assert row["explorer/token_advantage_change_abs"] == pytest.approx(0.25)
    assert row["explorer/advantage_change_abs"] == 0


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("entropy_advantage", {"kappa": 0.0}),
        ("entropy_advantage", {"kappa": -1.0}),
        ("entropy_advantage", {"alpha": 0.0}),
        ("clip_cov", {"ratio": 0.0}),
        ("clip_cov", {"low": 5.0}),
        ("kl_cov", {"ratio": 0.0}),
        ("kl_cov", {"ratio": 1.5}),
        ("kl_cov", {"weight": 0.0}),
        ("placebo", {"weight": 0.0}),
        ("outcome_batch", {"weight": -0.2}),
        ("outcome_ucb", {"weight": 0.0}),
        ("ucpo", {"tau": 2.0}),
        ("unlikeliness", {"beta_rank": 1.5}),
        ("outcome_batch", {"weight": float("inf")}),
        ("outcome_ucb", {"baseline": float("nan")}),
        ("focal", {"gamma": 0.0}),
        ("focal", {"gamma": float("nan")}),
        ("w_reinforce", {"lam": -1.0}),
        ("w_reinforce", {"negative": -1.0}),
        ("pkpo", {"scale": 0.0}),
        ("dynamic_sampling", {"max_batches": 1}),
        ("dynamic_sampling", {"budget": 0.0}),
        ("seeding", {"gamma": 0.0}),
        ("anchor", {"eta": -1.0}),
        ("anchor", {"gate": float("nan")}),
        ("rehearsal", {"eta": 0.0}),
        ("mode_replay", {"cap": 0}),
        ("tilt", {"tau": 0.0}),
        ("xdr_grpo", {"tau": 0.0}),
        ("sage", {"ratio": 0.0}),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(name, arguments):
    (argument, value), *_ = arguments.items()
    load_explorers({name: {}})
    with pytest.raises(ConfigError, match=f"{argument} of explorer {name} must be .*got {value}"):
        load_explorers({name: arguments})


def test_w_reinforce_with_nothing_to_learn_from_is_refused():
    with pytest.raises(ConfigError, match="lam and negative of explorer w_reinforce"):
        load_explorers({"w_reinforce": {"lam": 0.0, "negative": 0.0}})


def config(**settings) -> GRPOConfig:
    return GRPOConfig(output_dir="unused", use_cpu=True, bf16=False, num_generations=4, **settings)


@pytest.mark.parametrize(
    ("per_generation", "iterations", "accumulation", "updates"),
    [(1, 1, 1, 1), (2, 1, 1, 2), (1, 3, 1, 3), (4, 1, 2, 2), (2, 2, 2, 2), (2, 1, 4, 1), (3, 1, 2, 3)],
)
def test_updates_per_rollout_counts_the_steps_to_the_next_common_beginning(
    per_generation, iterations, accumulation, updates
) -> None:
    settings = config(
        per_device_train_batch_size=4,
        steps_per_generation=per_generation,
        num_iterations=iterations,
        gradient_accumulation_steps=accumulation,
    )
    assert updates_per_rollout(settings) == updates


@pytest.mark.long
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("per_generation", [1, 2, 4])
def test_with_one_update_and_only_then_trl_needs_no_log_probabilities_of_the_past(
    per_generation, accumulation, make_trainer
) -> None:
    """Fails if TRL changes when it takes the policy for the one that drew the rollouts."""
    trainer = make_trainer(
        "run",
        [],
        per_device_train_batch_size=4,
        steps_per_generation=per_generation,
        gradient_accumulation_steps=accumulation,
    )
    rows = [trainer.train_dataset[i] for i in range(per_generation) for _ in range(4)]
    output = trainer._generate_and_score_completions(rows)
    assert ("old_per_token_logps" in output) == (updates_per_rollout(trainer.args) > 1)


def test_clipping_that_never_binds_is_named() -> None:
    (line,) = no_op_settings(config(per_device_train_batch_size=4, epsilon_high=0.28))
    assert "epsilon_high" in line
    assert "steps_per_generation" in line
    assert no_op_settings(config(per_device_train_batch_size=4)) == []
    assert no_op_settings(config(per_device_train_batch_size=4, epsilon_high=0.28, steps_per_generation=2)) == []


def lab(tmp_path, *flags):
    words = ["--config", "lab", "--output_dir", str(tmp_path / "run"), "--use_cpu", "true", "--monitor_every", "0"]
    return parse_recipe([*words, "--train_args", '{"split": "train", "n": 64}', *flags])


@pytest.mark.long
def test_a_run_says_at_its_start_what_does_nothing(tmp_path, capsys) -> None:
    build_trainer(lab(tmp_path, "--epsilon_high", "0.28"))
    assert "offleash: WARNING: epsilon_high" in capsys.readouterr().out


@pytest.mark.long
def test_trls_own_synchronised_reference_is_refused_with_what_to_write_instead(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"reference_reset: \{every: 512, alpha: 0.6, reset_optimizer: false\}\}"):
        build_trainer(lab(tmp_path, "--sync_ref_model", "true"))
