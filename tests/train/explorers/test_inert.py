import pytest
from trl import GRPOConfig

from offleash.eval.errors import ConfigError
from offleash.train.explorers.inert import inert_settings, updates_per_rollout
from offleash.train.grpo import build_trainer
from offleash.train.recipe.config import parse_recipe


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
    (line,) = inert_settings(config(per_device_train_batch_size=4, epsilon_high=0.28))
    assert "epsilon_high does nothing with one update per rollout" in line
    assert "steps_per_generation" in line
    assert inert_settings(config(per_device_train_batch_size=4)) == []
    assert inert_settings(config(per_device_train_batch_size=4, epsilon_high=0.28, steps_per_generation=2)) == []


def lab(tmp_path, *flags):
    words = ["--config", "lab", "--output_dir", str(tmp_path / "run"), "--use_cpu", "true", "--monitor_every", "0"]
    return parse_recipe([*words, "--train_args", '{"split": "train", "n": 64}', *flags])


def test_a_run_says_at_its_start_what_does_nothing(tmp_path, capsys) -> None:
    build_trainer(lab(tmp_path, "--epsilon_high", "0.28"))
    assert "offleash: WARNING: epsilon_high does nothing" in capsys.readouterr().out


def test_trls_own_synchronised_reference_is_refused_with_what_to_write_instead(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"reference_reset: \{every: 512, alpha: 0.6, reset_optimizer: false\}\}"):
        build_trainer(lab(tmp_path, "--sync_ref_model", "true"))
