"""What a rollout counts under TRL's correction: the closed form against simulation, and what is said of it."""

import numpy as np
import pytest

from offleash.train.forecast.engine_weights import mean_weight, weight_notes
from offleash.train.recipe.config import parse_recipe


@pytest.mark.parametrize(("tokens", "weight"), [(1000, 0.92), (5000, 0.53), (16000, 0.20)])
def test_long_completions_hardly_count_under_trls_default(tokens: int, weight: float) -> None:
    assert mean_weight(tokens, "sequence_mask", 3.0) == pytest.approx(weight, abs=0.005)
    assert mean_weight(tokens, "token_truncate", 3.0) == pytest.approx(1.0)
    assert mean_weight(tokens, "sequence_mask", None) == 1.0


@pytest.mark.parametrize("mode", ["sequence_mask", "sequence_truncate"])
def test_the_closed_form_is_what_simulated_rollouts_count(mode: str) -> None:
    variance = 4000 * 0.02**2
    drawn = np.exp(np.random.default_rng(0).normal(-variance / 2, variance**0.5, 400_000))
    kept = np.where(drawn > 3, 0, drawn) if mode == "sequence_mask" else np.minimum(drawn, 3)
    assert mean_weight(4000, mode, 3.0) == pytest.approx(kept.mean(), abs=0.01)


def test_a_recipe_is_told_if_its_longest_completions_would_hardly_count() -> None:
    def told(*flags: str) -> list[str]:
        return weight_notes(parse_recipe(["--config", "models/dapo-1.5b", "--use_cpu", "true", *flags]).training)

    assert told() == []
    (line,) = told("--vllm_importance_sampling_mode", "sequence_mask")
    assert "sequence_mask" in line
    assert "8192 tokens" in line
    assert told("--vllm_importance_sampling_mode", "sequence_mask", "--max_completion_length", "1024") == []
    assert told("--vllm_importance_sampling_mode", "sequence_mask", "--use_vllm", "false") == []
