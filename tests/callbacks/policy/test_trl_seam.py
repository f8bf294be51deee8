"""Every function of the seam does with the installed TRL what it says. `make test-matrix` runs this for several."""

import ast
import inspect
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import TrainerCallback
from transformers.integrations import TrackioCallback, WandbCallback
from trl import GRPOConfig, GRPOTrainer
from trl.generation import vllm_client, vllm_generation

from offleash.callbacks.policy import trl_seam
from offleash.callbacks.policy.sampler import scoring_inputs
from offleash.eval.errors import MonitorError
from offleash.eval.sampling import Sampling
from offleash.train.explorers.base import Explorer, ExplorerTrainer
from offleash.train.exploring import Exploring
from offleash.train.preflight.vllm_cpu import prepare_vllm
from offleash.train.trainer import ExploringTrainer

PROMPTS = ["1 2 3 = 6:", "4 5 6 7 = 22:"]
SAMPLING = Sampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, max_new_tokens=20, stop=())
OWN_PROCESS = "OFFLEASH_TEST_OWN_PROCESS"
GREEDY = Sampling(temperature=1.0, top_p=1.0, top_k=1, min_p=0.0, repetition_penalty=1.0, max_new_tokens=3, stop=())


def drawn(trainer: Any, k: int = 4, seed: int = 0) -> list[list[int]]:
    """k completions of each of PROMPTS."""
    ids = [row for row in trl_seam.tokenize_prompts(trainer, PROMPTS).ids for _ in range(k)]
    torch.manual_seed(seed)
    return trl_seam.generate(trainer, trl_seam.TokenizedPrompts(ids, None, {}), k)


def constant(trainer: Any, token: int) -> Any:
    """A model that writes one token only."""
    other = trl_seam.load_reference(trainer, trl_seam.model_id(trainer.model))
    head = torch.nn.Linear(other.config.hidden_size, other.config.vocab_size)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    with torch.no_grad():
        head.bias[token] = 100.0
    other.lm_head = head
    return other


# Names


def test_a_trainer_has_every_name_that_is_relied_on(make_trainer: Any, names_of: Any) -> None:
    plain, exploring = make_trainer("plain", max_steps=1), make_trainer("exploring", explorers=[], max_steps=1)
    plain.train()  # some are set then
    exploring.train()
    assert [name for name in names_of(trl_seam.TrainerInternals) if not hasattr(plain, name)] == []
    assert [name for name in names_of(ExplorerTrainer) if not hasattr(exploring, name)] == []


def test_trl_has_every_name_of_vllm_generation_that_is_relied_on() -> None:
    assert {"_last_loaded_step", "vllm_generation"} <= assigned(GRPOTrainer)
    settings = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length"}
    state = {"model", "mode", "llm", "vllm_client", "enable_sleep_mode", "generation_kwargs", "_llm_weights_sleeping"}
    assert settings | state <= assigned(vllm_generation.VLLMGeneration)
    assert {"generate", "sync_weights"} <= set(dir(vllm_generation.VLLMGeneration))
    assert "self.llm = LLM(" in inspect.getsource(vllm_generation)
    assert {"base_url", "model"} <= assigned(vllm_client.VLLMClient) | set(dir(vllm_client.VLLMClient))
    assert {"_post", "get_server_info"} <= set(dir(vllm_client.VLLMClient))


def assigned(kind: type) -> set[str]:
    """The attributes that a class's methods set on self."""
    nodes = ast.walk(ast.parse(inspect.getsource(kind)))
    return {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }


@pytest.mark.parametrize(("callback", "name"), [(WandbCallback, "_wandb"), (TrackioCallback, "_trackio")])
def test_the_tracker_callbacks_keep_their_module(callback: type, name: str) -> None:
    assert name in assigned(callback) if name == "_wandb" else f"self.{name} = " in inspect.getsource(callback)


OVERRIDDEN = {
    "_calculate_rewards",
    "_compute_loss",
    "_generate",
    "_generate_and_score_completions",
    "_get_per_token_logps_and_entropies",
    "_issue_warnings_after_load",
    "_load_best_model",
    "_load_from_checkpoint",
    "_load_optimizer_and_scheduler",
    "_prepare_inputs",
    "_push_from_checkpoint",
    "_save_checkpoint",
}


def test_the_trainer_overrides_these_private_methods_and_shadows_nothing_else_by_accident() -> None:
    kinds = (Exploring, ExploringTrainer)
    private = {name for kind in kinds for name in vars(kind) if name.startswith("_") and not name.startswith("__")}
    assert {name for name in private if hasattr(GRPOTrainer, name)} == OVERRIDDEN
    ours = set.union(private, *map(assigned, kinds))
    theirs = set.union(*(assigned(kind) for kind in GRPOTrainer.__mro__[:-1] if kind.__module__.startswith("tr")))
    assert {name for name in ours & theirs if name.startswith("_")} == set()


@pytest.mark.parametrize("name", sorted(OVERRIDDEN))
def test_an_override_takes_what_the_method_of_trl_takes(name: str) -> None:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ours, theirs = (
        [p for p in inspect.signature(getattr(kind, name)).parameters.values() if p.kind in kinds]
        for kind in (ExploringTrainer, GRPOTrainer)
    )
    variadic = inspect.Parameter.VAR_POSITIONAL in {
        p.kind for p in inspect.signature(getattr(ExploringTrainer, name)).parameters.values()
    }
    assert len(ours) == len(theirs) or (variadic and len(ours) <= len(theirs))


# Tokens and generation


def test_prompts_become_the_tokens_of_the_tokenizer(make_trainer: Any) -> None:
    trainer = make_trainer()
    tokenizer = trl_seam.text_tokenizer(trainer)
    found = trl_seam.tokenize_prompts(trainer, PROMPTS)
    assert found == (tokenizer(PROMPTS)["input_ids"], None, {})
    assert tokenizer is trainer.processing_class
    assert not trl_seam.takes_images(trainer)


def test_generation_gives_k_completions_of_each_prompt_and_logs_nothing(make_trainer: Any) -> None:
    trainer = make_trainer()
    first, again, other = drawn(trainer), drawn(trainer), drawn(trainer, seed=1)
    assert len(first) == 8
    assert all(1 <= len(ids) <= 20 for ids in first)
    assert first == again != other
    assert not trl_seam.train_metrics(trainer)


def test_the_padding_side_of_the_tokenizer_makes_no_difference(make_trainer: Any) -> None:
    trainer, found = make_trainer(), []
    for side in ("left", "right"):
        trl_seam.text_tokenizer(trainer).padding_side = side
        found.append(drawn(trainer))
    assert found[0] == found[1]


def test_another_model_generates_inside_the_block_only(make_trainer: Any) -> None:
    trainer = make_trainer()
    before, policy = drawn(trainer), trainer.model
    token = trl_seam.text_tokenizer(trainer)("7", add_special_tokens=False)["input_ids"][0]
    with trl_seam.generating_with(trainer, constant(trainer, token)):
        assert drawn(trainer) == [[token] * 20] * 8
    assert trainer.model is trainer.model_wrapped is policy
    assert drawn(trainer) == before


def test_other_sampling_settings_hold_inside_the_block_only(make_trainer: Any) -> None:
    trainer = make_trainer()
    before = drawn(trainer)
    with trl_seam.sampling_as(trainer, GREEDY):
        greedy = drawn(trainer)
    assert [len(set(map(tuple, greedy[i : i + 4]))) for i in (0, 4)] == [1, 1]
    assert max(map(len, greedy)) == 3
    with trl_seam.sampling_as(trainer, SAMPLING):
        assert drawn(trainer) == before
    assert drawn(trainer) == before


# Rollouts of several turns


def test_a_trainer_with_environments_has_every_name_that_is_relied_on(make_tool_trainer: Any, names_of: Any) -> None:
    trainer = make_tool_trainer("environment_factory")
    names = names_of(trl_seam.EnvironmentInternals) - names_of(trl_seam.TrainerInternals)
    assert names
    assert [name for name in names if not hasattr(trainer, name)] == []


@pytest.mark.parametrize("kind", ["tools", "environment_factory", "rollout_func"])
def test_rollouts_are_those_of_training_and_leave_nothing_behind(make_tool_trainer: Any, kind: str) -> None:
    trainer = make_tool_trainer(kind)
    rows = [dict(row) for row in trainer.train_dataset.select(range(4)) for _ in range(4)]  # as many as TRL remembers
    trainer.model.eval()
    before, tokens = dict(vars(trainer)), trainer.state.num_input_tokens_seen
    logs = json.dumps([trainer._metrics, trainer._pending_metrics, trainer._pending_extra_logs])
    torch.manual_seed(0)
    found = trl_seam.roll_out(trainer, rows, 4, defaultdict(list), trainer.reward_funcs[0])
    assert vars(trainer) == before
    assert trainer.state.num_input_tokens_seen == tokens
    assert json.dumps([trainer._metrics, trainer._pending_metrics, trainer._pending_extra_logs]) == logs

    torch.manual_seed(0)
    trained = trainer._generate_and_score_completions([dict(row) for row in rows])
    mask, ids = trained["completion_mask"].bool(), trained["completion_ids"]
    assert found.completion_ids == [row[kept].tolist() for row, kept in zip(ids, mask, strict=True)]
    assert found.written == [row[kept].tolist() for row, kept in zip(trained["tool_mask"], mask, strict=True)]
    assert found.completions == list(trainer._logs["completion"])
    assert found.rewards == list(trainer._logs["rewards"][trainer.reward_func_names[0]])
    assert 0 < sum(found.rewards) < 16


def test_a_trainer_that_generates_by_itself_is_not_taken_for_trl(make_tool_trainer: Any) -> None:
    trainer = make_tool_trainer("tools")
    trainer._generate_and_score_completions = lambda inputs: {}
    with pytest.raises(MonitorError, match="_generate"):
        trl_seam.roll_out(trainer, [dict(row) for row in trainer.train_dataset], 1, {}, None)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        (None, {}),
        ("FSDP", {"is_fsdp_enabled": True}),
        ("ZeRO-3", {"is_deepspeed_enabled": True}),
        ("vllm_mode=server", {"use_vllm": True, "vllm_generation": SimpleNamespace(mode="server")}),
        (
            "vllm_tensor_parallel_size",
            {"use_vllm": True, "vllm_generation": SimpleNamespace(mode="colocate", tensor_parallel_size=2)},
        ),
        (None, {"use_vllm": True, "vllm_generation": SimpleNamespace(mode="colocate", tensor_parallel_size=1)}),
    ],
)
def test_settings_by_which_ranks_wait_at_every_turn_are_named(
    stand_in_trainer: Any, name: str | None, settings: dict[str, Any]
) -> None:
    plain = {"is_fsdp_enabled": False, "is_deepspeed_enabled": False, "use_vllm": False}
    for processes in (1, 2):
        state = SimpleNamespace(deepspeed_plugin=SimpleNamespace(zero_stage=3))
        accelerator = SimpleNamespace(num_processes=processes, state=state)
        trainer = stand_in_trainer(**{**plain, **settings, "accelerator": accelerator})
        assert trl_seam.waits_at_every_turn(trainer) == (name if processes > 1 else None)


# Scoring


@pytest.fixture
def scored() -> Any:
    """A completion of each of PROMPTS, padded, and what the model gives for each of its tokens: logits over T."""

    def make(trainer: Any, model: Any) -> tuple[tuple[Any, Any, int], torch.Tensor, torch.Tensor, torch.Tensor]:
        prompts = trl_seam.tokenize_prompts(trainer, PROMPTS).ids
        inputs = scoring_inputs([(prompts[0], [5, 6, 7]), (prompts[1], [8, 9])], 0, trainer.accelerator.device)
        rows = inputs["input_ids"], inputs["attention_mask"], 3
        with torch.no_grad():
            logits = model(input_ids=rows[0], attention_mask=rows[1]).logits[:, -4:-1] / trainer.temperature
        logps = logits.log_softmax(-1)
        entropies = -(logps.exp() * logps).sum(-1)
        return rows, logps.gather(-1, rows[0][:, -3:, None])[..., 0], entropies, inputs["mask"]

    return make


def test_scores_are_the_models_at_the_training_temperature(make_trainer: Any, scored: Any) -> None:
    trainer = make_trainer(temperature=0.7)
    rows, logps, entropies, mask = scored(trainer, trainer.model)
    with torch.no_grad():
        found = trl_seam.token_logps(trainer, trainer.model, *rows, batch_size=1, entropies=True)
        alone = trl_seam.token_logps(trainer, trainer.model, *rows)
    assert torch.allclose(found[0] * mask, logps * mask, atol=1e-5)
    assert torch.allclose(found[1] * mask, entropies * mask, atol=1e-5)
    assert torch.allclose(alone[0] * mask, logps * mask, atol=1e-5)


def test_the_reference_gives_entropies_inside_the_block_and_is_as_before_after_it(
    make_trainer: Any, scored: Any
) -> None:
    trainer = make_trainer()
    rows, logps, entropies, mask = scored(trainer, trainer.ref_model)
    forward = trainer.ref_model.forward
    with torch.no_grad(), trl_seam.entropy_head(trainer, trainer.ref_model):
        found = trl_seam.token_logps(trainer, trainer.ref_model, *rows, entropies=True)
    assert torch.allclose(found[0] * mask, logps * mask, atol=1e-5)
    assert torch.allclose(found[1] * mask, entropies * mask, atol=1e-5)
    assert trainer.ref_model.forward == forward


def test_a_reference_is_loaded_from_where_the_policy_came_from(make_trainer: Any, scored: Any, lab_base: Path) -> None:
    trainer = make_trainer(beta=0.0)
    assert trainer.ref_model is None
    assert trl_seam.model_id(trainer.model) == str(lab_base)
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight.mul_(1.5)
    reference = trl_seam.load_reference(trainer, str(lab_base))
    assert not reference.training
    assert reference.dtype == trainer.model.dtype
    rows, logps, _, mask = scored(trainer, reference)
    with torch.no_grad():
        found, _ = trl_seam.token_logps(trainer, reference, *rows)
        policy, _ = trl_seam.token_logps(trainer, trainer.model, *rows)
    assert torch.allclose(found * mask, logps * mask, atol=1e-5)
    assert not torch.allclose(found * mask, policy * mask, atol=1e-2)


def test_gradient_checkpointing_is_off_inside_the_block_only(make_trainer: Any) -> None:
    trainer = make_trainer(gradient_checkpointing=True)
    trainer.model.gradient_checkpointing_enable()  # as `train` does
    assert trainer.model.is_gradient_checkpointing
    with trl_seam.without_gradient_checkpointing(trainer):
        assert not trainer.model.is_gradient_checkpointing
    assert trainer.model.is_gradient_checkpointing


def test_inputs_are_moved_and_no_rollout_is_drawn(make_trainer: Any) -> None:
    trainer = make_trainer()
    moved = trl_seam.to_device(trainer, {"pixel_values": torch.ones(2, 3), "other": torch.arange(2)})
    assert {name: value.tolist() for name, value in moved.items()} == {"pixel_values": [[1.0] * 3] * 2, "other": [0, 1]}
    assert trl_seam.latest_rollouts(trainer) == ([], [])


def test_the_standard_deviation_leaves_out_nan() -> None:
    values = torch.tensor([[1.0, 2.0, torch.nan, 4.0], [0.0, 0.0, 1.0, 1.0]])
    known = torch.tensor([1.0, 2.0, 4.0])
    assert torch.allclose(trl_seam.nanstd(values, dim=1), torch.stack([known.std(), values[1].std()]))
    assert trl_seam.nanstd(values, dim=1, keepdim=True).shape == (2, 1)
    assert torch.allclose(trl_seam.nanstd(values), torch.cat([known, values[1]]).std())


# The run


class Note(TrainerCallback):
    """Logs a number of its own at the end of each step."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trl_seam.train_metrics(self.trainer)["explorer/note"].extend([1.0, 2.0])


class MicroBatches(Explorer):
    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def token_advantages(self, tokens: Any) -> Any:
        self.seen.append((tokens.step, trl_seam.micro_batch(self.trainer)))
        return tokens.advantages_bt


def test_a_run_logs_our_metrics_keeps_its_rollouts_and_visits_the_samplers_rows(
    make_trainer: Any, tmp_path: Path
) -> None:
    explorer = MicroBatches()
    trainer = make_trainer(
        explorers=[explorer],
        max_steps=2,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        save_strategy="steps",
        save_steps=2,
        use_adaptive_entropy=True,
    )
    order = list(trl_seam.train_sampler(trainer))
    trainer.add_callback(Note(trainer))
    trainer.train()
    assert [row["explorer/note"] for row in trainer.state.log_history if "explorer/note" in row] == [1.5, 1.5]

    prompts, completions = trl_seam.latest_rollouts(trainer)
    assert len(prompts) == len(completions) == 16
    assert all(prompts[i : i + 4] == [prompts[i]] * 4 for i in range(0, 16, 4))
    rows = order[2 * 16 :][:16]  # each generation batch stands once for each of its two micro-batches
    assert prompts == [trainer.train_dataset[row]["prompt"] for row in rows]

    assert [step for step, _ in explorer.seen] == [0, 0, 1, 1]
    first, second = explorer.seen[0][1], explorer.seen[1][1]
    assert {first, second} == {0, 1}
    assert [part for _, part in explorer.seen] == [first, second] * 2

    folder = trl_seam.checkpoint_folder(trainer, None)
    assert folder == tmp_path / "run" / "checkpoint-2"
    assert json.loads((folder / "entropy_ctrl_state.json").read_text()) == trl_seam.entropy_controller(trainer)


def test_without_the_adaptive_bonus_there_is_no_controller(make_trainer: Any) -> None:
    assert trl_seam.entropy_controller(make_trainer()) is None


def test_saving_a_model_pushes_nothing(make_trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer()
    monkeypatch.setattr(trainer.args, "push_to_hub", True)
    monkeypatch.setattr(trainer, "push_to_hub", lambda **kwargs: pytest.fail("pushed"))
    trl_seam.save_model(trainer, tmp_path / "saved")
    assert (tmp_path / "saved" / "model.safetensors").exists()


def test_weights_that_are_saved_once_are_known(make_trainer: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    trainer = make_trainer()
    trainer.model.save_pretrained(tmp_path)
    saved = set(load_file(tmp_path / "model.safetensors"))
    assert set(trainer.model.state_dict()) - saved <= trl_seam.unsaved_weights(trainer.model)


def test_the_device_of_the_arguments_can_be_replaced(make_trainer: Any) -> None:
    trainer = make_trainer()
    trl_seam.set_device(trainer.args, torch.device("meta"))
    assert trainer.args.device == torch.device("meta")


# vLLM


@pytest.mark.slow
def test_a_colocated_engine_draws_and_scores_with_the_weights_that_it_is_given(request: Any) -> None:
    """In a separate process: vLLM and its patches stay in a process for good."""
    nodeid = f"{Path(__file__).relative_to(request.config.rootpath)}::test_in_its_own_process"
    line = [sys.executable, "-m", "pytest", "-q", "-m", "slow", nodeid]
    env = {**os.environ, OWN_PROCESS: "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, cwd=request.config.rootpath, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:]


@pytest.mark.slow
@pytest.mark.skipif(OWN_PROCESS not in os.environ, reason="the test above runs it")
def test_in_its_own_process(make_trainer: Any, scored: Any, vllm_base: Path) -> None:
    args = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.02, "temperature": 1.0}
    prepare_vllm(GRPOConfig("unused", use_cpu=True, bf16=False, **args), str(vllm_base))
    trainer = make_trainer(**args, vllm_max_model_length=128, model=vllm_base)
    assert not trl_seam.is_server(trainer)
    assert trl_seam.engine_dtype(trainer) == "float32"
    checks: list[bool] = []
    trl_seam.before_generate(trainer, checks.append)

    first = drawn(trainer)
    assert len(first) == 8
    assert checks == [False]
    rows, logps, _, mask = scored(trainer, trainer.model)
    sequences = [row[kept.bool()].tolist() for row, kept in zip(rows[0], rows[1], strict=True)]
    engine = trl_seam.engine_logps(trainer, sequences)
    assert len(engine) == sum(map(len, sequences)) - 2
    ends = [engine[len(sequences[0]) - 4 : len(sequences[0]) - 1], engine[-2:]]
    for found, wanted, kept in zip(ends, logps, mask, strict=True):
        assert found == pytest.approx(wanted[kept.bool()].tolist(), abs=1e-4)

    token = trl_seam.text_tokenizer(trainer)("7", add_special_tokens=False)["input_ids"][0]
    with trl_seam.sampling_as(trainer, GREEDY):
        greedy = drawn(trainer)
        assert max(map(len, greedy)) == 3
        assert [len(set(map(tuple, greedy[i : i + 4]))) for i in (0, 4)] == [1, 1]
        with trl_seam.generating_with(trainer, zeroed(trainer)):
            assert drawn(trainer) != greedy
        assert drawn(trainer) == greedy
        trl_seam.add_request_options(trainer, logit_bias={token: 100.0})
        assert drawn(trainer) == [[token] * 3] * 8
    trl_seam.shut_down_engine(trainer)


def zeroed(trainer: Any) -> Any:
    """A model to which every token is equally likely."""
    other = trl_seam.load_reference(trainer, trl_seam.model_id(trainer.model))
    with torch.no_grad():
        for weight in other.parameters():
            weight.zero_()
    return other
