"""The monitor on trainers whose rollouts take several turns: tools, environments, rollout functions."""

import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from offleash.callbacks import SupportCallback
from offleash.callbacks.policy.sampler import plan_rounds
from offleash.eval.errors import ConfigError
from offleash.eval.pool.pool import Pool
from offleash.eval.transcript import final_turn

pytestmark = pytest.mark.long

KINDS = ["tools", "environment_factory", "rollout_func"]
COLUMNS = ["problem_id", "correct", "status", "tokens", "logprob", "base_logprob", "entropy", "completion"]


def monitor_of(trainer: Any, task: Any, **settings: Any) -> SupportCallback:
    monitor = SupportCallback(trainer, task, **{"k": 4, "every": 1, "score_k": 4, "batch_size": 8, **settings})
    trainer.add_callback(monitor)
    return monitor


def step(folder: Path, number: int = 0) -> list[dict[str, Any]]:
    return Pool.open(folder / "pools" / f"step-{number:06d}").read(COLUMNS).to_pylist()


@pytest.mark.parametrize("kind", KINDS)
def test_the_monitor_does_not_change_training(make_tool_trainer: Any, letters: Any, trajectory: Any, kind: str) -> None:
    plain = make_tool_trainer(kind, "plain")
    plain.train()
    watched = make_tool_trainer(kind, "watched")
    monitor = monitor_of(watched, letters)
    watched.train()
    assert sorted(monitor.history) == [0, 1, 2]
    assert trajectory(watched) == trajectory(plain)
    assert watched.state.num_input_tokens_seen == plain.state.num_input_tokens_seen > 0
    assert len({row["loss"] for row in trajectory(plain)}) > 1
    if kind != "rollout_func":
        assert trajectory(plain)[0]["tools/call_frequency"] > 0


def test_a_policy_is_measured_with_its_tools(make_tool_trainer: Any, letters: Any, tmp_path: Path) -> None:
    trainer = make_tool_trainer("tools", max_steps=1)
    monitor_of(trainer, letters, k=16)
    trainer.train()
    rows = step(tmp_path / "run")
    called = [row for row in rows if "=== tool: lookup ===" in row["completion"]]
    assert len(rows) == 64
    assert len(called) > 16
    said = [final_turn(row["completion"]) for row in rows]
    golds = {problem.id: problem.gold for problem in letters.problems}
    assert [row["correct"] for row in rows] == [
        text == golds[row["problem_id"]] for row, text in zip(rows, said, strict=True)
    ]
    assert 0 < sum(row["correct"] for row in rows) < 64


def test_transcripts_tokens_and_scores_are_those_of_the_policy(
    make_tool_trainer: Any, letters: Any, tmp_path: Path
) -> None:
    """By brute force: each turn scored alone, with everything before it as its prompt."""
    import torch

    trainer = make_tool_trainer("tools", max_steps=1, temperature=0.9)
    monitor = monitor_of(trainer, letters, k=8, score_k=8)
    drawn: list[Any] = []
    sampler = monitor.policy_pool.sampler
    turns = sampler._turns
    sampler._turns = lambda *args: drawn.extend(found := turns(*args)) or found  # type: ignore[method-assign]
    rows = [draw for draws in sampler.draw(plan_rounds(4, 8, 8, 8), seed=1) for draw in draws]
    assert len(rows) == len(drawn) == 32
    tokenizer, model = trainer.processing_class, trainer.model
    several = 0
    for draw, prompt_ids, ids, written in drawn:
        text = tokenizer.decode(ids)
        tools = [part.split("<|end|>")[0] for part in text.split("<|tool|>")[1:]]
        masked = tokenizer.decode([i for i, own in zip(ids, written, strict=True) if not own])
        assert masked == "".join(f"<|tool|>{digit}<|end|><|assistant|>" for digit in tools)
        several += bool(tools)
        with torch.no_grad():
            logits = model(torch.tensor([prompt_ids + ids])).logits[0, len(prompt_ids) - 1 : -1] / 0.9
        logps = logits.log_softmax(-1)
        own = torch.tensor(written, dtype=torch.bool)
        picked = logps.gather(-1, torch.tensor(ids)[:, None])[:, 0]
        entropies = -(logps.exp() * logps).sum(-1)
        assert draw.tokens == int(own.sum()) == len(ids) - int((~own).sum())
        assert draw.logprob == pytest.approx(float(picked[own].sum()), abs=1e-4)
        assert draw.base_logprob == pytest.approx(draw.logprob, abs=1e-4)
        assert draw.entropy == pytest.approx(float(entropies[own].mean()), abs=1e-4)
    assert 4 < several < 32


def test_the_environment_judges_the_rollout_it_was_in(
    make_tool_trainer: Any, rewarded_letters: Any, tmp_path: Path
) -> None:
    trainer = make_tool_trainer("environment_factory", max_steps=1)
    monitor_of(trainer, rewarded_letters(trainer.reward_funcs[0]), k=16, score_k=4, batch_size=24)
    trainer.train()
    rows = step(tmp_path / "run")
    assert len(rows) == 64
    opened = [f'=== call: lookup ===\n{{"key": "{row["problem_id"]}"}}' in row["completion"] for row in rows]
    assert [row["correct"] for row in rows] == opened
    assert 0 < sum(opened) < 64


def test_environments_of_training_are_left_alone_and_those_of_the_monitor_are_reused(
    make_tool_trainer: Any, rewarded_letters: Any
) -> None:
    trainer = make_tool_trainer("environment_factory", max_steps=1)
    monitor = monitor_of(trainer, rewarded_letters(trainer.reward_funcs[0]), k=4, batch_size=6)
    trainer.train()
    ours = monitor.policy_pool.sampler.multi_turn.environments[None]
    theirs = trainer._environment_pool[None]
    assert not {id(one) for one in ours} & {id(one) for one in theirs}
    assert [one.resets for one in theirs] == [1] * 16
    assert len(ours) == 4  # whole problems of 4 draws each: 6 have room for one
    assert {one.resets for one in ours} == {3 * 4}  # base, step 0 and step 1, a round for each of 4 problems
    assert trainer.environments == theirs


def test_a_reward_sees_environments_columns_and_what_a_rollout_function_hands_on(
    make_tool_trainer: Any, rewarded_letters: Any, tmp_path: Path
) -> None:
    seen: list[set[str]] = []

    def keen(completions: Any, environments: Any, value: Any, log_metric: Any, log_extra: Any, **rest: Any) -> Any:
        log_metric("mine", 1.0)
        log_extra("column", list(value))
        seen.append({type(one).__name__ for one in environments} | {type(chat).__name__ for chat in completions})
        return [0.7 if one.opened else 0.2 for one in environments]

    trainer = make_tool_trainer("environment_factory", max_steps=1)
    monitor_of(trainer, rewarded_letters(keen, threshold=0.7), k=8)
    trainer.train()
    rows = step(tmp_path / "run")
    assert seen[0] == {"Vault", "list"}
    assert 0 < sum(row["correct"] for row in rows) < 32
    assert not trainer._pending_metrics
    assert not trainer._pending_extra_logs
    assert not any("mine" in row for row in trainer.state.log_history)

    async def told(said: Any, value: Any, **rest: Any) -> Any:
        return [float(text == digit) for text, digit in zip(said, value, strict=True)]

    trainer = make_tool_trainer("rollout_func", "other", max_steps=1)
    monitor_of(trainer, rewarded_letters(told), k=8)
    trainer.train()
    rows = step(tmp_path / "other")
    assert {row["completion"].count("=== environment ===") for row in rows} == {1}
    golds = {problem.id: problem.gold for problem in rewarded_letters(told).problems}
    assert [row["correct"] for row in rows] == [final_turn(r["completion"]) == golds[r["problem_id"]] for r in rows]
    assert any(row["correct"] for row in rows)


def test_a_reward_that_does_not_apply_is_never_wrong(
    make_tool_trainer: Any, rewarded_letters: Any, tmp_path: Path
) -> None:
    from offleash.eval.errors import VerifyError

    trainer = make_tool_trainer("environment_factory", max_steps=1)
    monitor_of(trainer, rewarded_letters(lambda completions, **rest: [None] * len(completions)))
    with pytest.raises(VerifyError):
        trainer.train()


@pytest.mark.parametrize("kind", KINDS)
def test_a_base_drawn_in_mid_run_is_the_base_of_step_0(
    make_tool_trainer: Any, letters: Any, tmp_path: Path, kind: str
) -> None:
    trainer = make_tool_trainer(kind, max_steps=2)
    monitor = monitor_of(trainer, letters)
    trainer.train()
    assert trainer.model.lm_head.weight.ne(trainer.ref_model.lm_head.weight).any()
    base = monitor.policy_pool
    spec = base.base_spec(monitor.base_pool.spec.seed)
    again = base.fill_base(tmp_path / "other", spec, spec.seed, step=2)
    first, second = (pool.read(COLUMNS).to_pylist() for pool in (monitor.base_pool, again))
    assert [row["completion"] for row in first] == [row["completion"] for row in second]
    assert [row["correct"] for row in first] == [row["correct"] for row in second]
    assert [row["logprob"] for row in first] == pytest.approx([row["logprob"] for row in second], abs=1e-4)


def test_the_monitor_has_its_own_sampling_settings(make_tool_trainer: Any, letters: Any, tmp_path: Path) -> None:
    trainer = make_tool_trainer("tools", max_steps=1)
    monitor_of(trainer, letters, k=8, temperature=0.05, max_new_tokens=9)
    trainer.train()
    rows = step(tmp_path / "run")
    assert max(Counter((row["problem_id"], row["completion"]) for row in rows).values()) >= 6  # nearly greedy
    # A call is 4 tokens, its result and the next header 4 more: 1 is left for the answer, and none for its end.
    answered = [row for row in rows if "=== tool: lookup ===" in row["completion"]]
    assert answered
    assert all(row["tokens"] == 5 for row in answered)
    assert trainer.max_completion_length == 24


@pytest.mark.parametrize("limits", [{"max_completion_length": 6}, {"max_tool_calling_iterations": 0}])
def test_a_rollout_that_a_limit_cut_off_is_truncated(
    make_tool_trainer: Any, rewarded_letters: Any, limits: dict[str, int]
) -> None:
    """The last token is the end of a turn, and yet the policy was not done."""
    trainer = make_tool_trainer("tools", max_steps=1, **limits)
    sampler = monitor_of(trainer, rewarded_letters(said_something), k=8).policy_pool.sampler
    draws = [draw for draws in sampler.draw(plan_rounds(4, 8, 8, 8), seed=1) for draw in draws]
    calls = [draw for draw in draws if "=== call" in draw.completion]
    assert calls
    assert all(draw.truncated for draw in calls)
    assert not all(draw.truncated for draw in draws)


def said_something(completions: Any, **columns: Any) -> list[float]:
    return [float(bool(chat[-1]["content"])) for chat in completions]


@pytest.mark.parametrize("name", ["importance", "exact"])
def test_what_needs_one_turn_is_refused_by_name(make_tool_trainer: Any, letters: Any, name: str) -> None:
    trainer = make_tool_trainer("tools")
    with pytest.raises(ConfigError, match=f"{name}.*tools"):
        SupportCallback(trainer, letters, k=2, **{name: True})


def test_a_rollout_function_has_its_own_sampling_settings(make_tool_trainer: Any, letters: Any) -> None:
    trainer = make_tool_trainer("rollout_func")
    with pytest.raises(ConfigError, match=r"rollout_func.*temperature"):
        SupportCallback(trainer, letters, k=2, temperature=0.5)


def test_another_tool_is_another_base(make_tool_trainer: Any, letters: Any) -> None:
    def lookup(key: str) -> str:
        """The digit behind a letter.

        Args:
            key: the letter
        """
        return "0"

    trainers = [
        make_tool_trainer("plain"),
        make_tool_trainer("tools"),
        make_tool_trainer("tools", arguments={"tools": [lookup]}),
        make_tool_trainer("tools", max_tool_calling_iterations=1),
        make_tool_trainer("environment_factory"),
        make_tool_trainer("rollout_func"),
    ]
    specs = [SupportCallback(trainer, letters, k=2).policy_pool.base_spec(0) for trainer in trainers]
    assert len({spec.fingerprint() for spec in specs}) == len(specs)
    again = SupportCallback(make_tool_trainer("tools"), letters, k=2).policy_pool.base_spec(0)
    assert again.fingerprint() == specs[1].fingerprint()
    assert [spec.multi_turn for spec in specs] == [False, True, True, True, True, True]


def test_each_problem_is_played_in_the_environment_it_names(make_tool_trainer: Any, rewarded_letters: Any) -> None:
    """As a dictionary of factories has it: the row's column `environment` chooses, with its tools only."""
    from datasets import Dataset

    class Greeting:
        def reset(self, key: str, **columns: Any) -> str:
            self.key = key
            return f" {key}{key}"

        def lookup(self, key: str) -> str:
            """Nothing.

            Args:
                key: a letter
            """
            return "hello"

    trainer = make_tool_trainer("environment_factory")
    vault = trainer.environment_factories[None]
    rows = [{**row, "environment": "vault"} for row in trainer.train_dataset]
    both = {"environment_factory": {"vault": vault, "greeting": Greeting}, "train_dataset": Dataset.from_list(rows)}
    trainer = make_tool_trainer("environment_factory", "both", both)
    task = rewarded_letters(
        trainer.reward_funcs[0], environment=lambda row: "vault" if row["key"] in "ik" else "greeting"
    )
    sampler = SupportCallback(trainer, task, k=8).policy_pool.sampler
    draws = [draw for draws in sampler.draw(plan_rounds(4, 8, 8, 16), seed=1) for draw in draws]
    results = {0: "=== tool: lookup ===\nhello" not in "".join(d.completion for d in draws if d.problem % 2 == 0)}
    results[1] = "=== tool: lookup ===\nhello" in "".join(d.completion for d in draws if d.problem % 2)
    assert results == {0: True, 1: True}
    # Only the vault has a reward: elsewhere it does not apply.
    assert all(math.isnan(d.reward) == bool(d.problem % 2) for d in draws)
    prompts = sampler.multi_turn.draw([1, 1], 2)
    assert trainer.processing_class.decode(prompts[0].prompt_ids).endswith("j? jj<|end|><|assistant|>")


def test_a_row_that_an_environment_cannot_take_is_an_error_and_leaves_the_trainer_as_it_was(
    make_tool_trainer: Any, rewarded_letters: Any
) -> None:
    trainer = make_tool_trainer("environment_factory")
    rows = [{"prompt": problem.prompt} for problem in rewarded_letters(said_something).problems]
    sampler = SupportCallback(trainer, rows, k=2).policy_pool.sampler  # without a key, which reset needs
    with pytest.raises(TypeError, match="key"):
        list(sampler.draw(plan_rounds(4, 2, 2, 8), seed=1))
    assert "_generate" not in vars(trainer)  # everything is in its place again
    assert trainer.environments is None


RANKS = """
import json, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import conftest
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from offleash.callbacks import SupportCallback

settings = json.loads({settings!r})
trainer = GRPOTrainer(
    model=settings.pop("model"),
    args=GRPOConfig(**settings),
    train_dataset=Dataset.from_list(conftest.rows_of(conftest.KEYS[:8])),
    environment_factory=conftest.Vault,
)
if {watched}:
    task = conftest.rewarded(trainer.reward_funcs[0], keys="ijk")
    trainer.add_callback(SupportCallback(trainer, task, k=4, every=1, score_k=4, batch_size=4))
trainer.train()
if trainer.accelerator.is_main_process:
    Path(settings["output_dir"], "log.json").write_text(json.dumps(trainer.state.log_history))
"""


@pytest.mark.slow
def test_two_processes_share_the_rollouts_and_training_is_not_changed(
    tool_model: Path, tmp_path: Path, trajectory: Any
) -> None:
    logged = {}
    for name in ("plain", "watched"):
        settings = {
            "model": str(tool_model),
            "output_dir": str(tmp_path / name),
            **{"max_steps": 2, "learning_rate": 1e-3, "num_generations": 4, "per_device_train_batch_size": 8},
            **{"max_completion_length": 24, "logging_steps": 1, "save_strategy": "no", "report_to": "none"},
            **{"bf16": False, "gradient_checkpointing": False, "use_cpu": True, "disable_tqdm": True, "beta": 0.01},
        }
        script = tmp_path / f"{name}.py"
        text = RANKS.format(tests=str(Path(__file__).parent), settings=json.dumps(settings), watched=name == "watched")
        script.write_text(text)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-4000:]
        logged[name] = trajectory(json.loads((tmp_path / name / "log.json").read_text()))
    assert logged["watched"] == logged["plain"]
    pool = Pool.open(tmp_path / "watched" / "pools" / "step-000001")
    assert pool.is_complete  # 3 problems on 2 processes: one draws padding
    assert pool.duplicates() == 0
    rows = pool.read(COLUMNS).to_pylist()
    opened = [f'=== call: lookup ===\n{{"key": "{row["problem_id"]}"}}' in row["completion"] for row in rows]
    assert [row["correct"] for row in rows] == opened
