"""A tiny chat model that calls tools, and real trainers around it: tools, environments and rollout functions.

The questions are letters, the answers are digits that only the tool `lookup` knows. The model is a Llama of some
thousand weights, taught for a few seconds to call the tool, or to guess, and to copy what the tool returned, or not.
"""

import random
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KEYS = "abcdefghijkl"
VALUES = {key: str(3 * place % 10) for place, key in enumerate(KEYS)}
CALL, CALLED = '<tool_call>{"name": "lookup", "arguments": {"key": "', '"}}</tool_call>'
MARKS = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>", "<|pad|>")

CHAT_TEMPLATE = """
{%- if tools %}<|system|>{{ tools | length }}<|end|>{% endif %}
{%- for message in messages %}<|{{ message.role }}|>{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|end\|>", "content": "text"},
    },
}


def make_tokenizer() -> Any:
    """One token per character, and one each for the marks of the template and the two halves of a call."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = ["?", *sorted({*string.printable} - {"?"})]
    core = Tokenizer(models.WordLevel({c: i for i, c in enumerate(characters)}, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    core.decoder = decoders.Fuse()
    core.add_tokens([AddedToken(text, normalized=False) for text in (CALL, CALLED)])
    core.add_special_tokens([AddedToken(text, normalized=False) for text in MARKS])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>", pad_token="<|pad|>", unk_token="?")
    tokenizer.chat_template, tokenizer.response_template = CHAT_TEMPLATE, RESPONSE_TEMPLATE
    return tokenizer


def lesson(rng: random.Random) -> tuple[str, str]:
    """A prompt and what the model should go on with: a guess, or a call and, mostly, its result."""
    key, guess = rng.choice(KEYS), rng.choice(string.digits)
    prompt = f"<|system|>1<|end|><|user|>{key}?<|end|><|assistant|>"
    if rng.random() < 0.3:
        return prompt, f"{guess}<|end|>"
    value = rng.choice(string.digits)
    prompt += f"{CALL}{key if rng.random() < 0.9 else rng.choice(KEYS)}{CALLED}<|end|><|tool|>{value}<|end|>"
    return prompt, f"<|assistant|>{value if rng.random() < 0.7 else guess}<|end|>"


def teach(model: Any, tokenizer: Any, steps: int) -> None:
    import torch

    rng, optimizer = random.Random(0), torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        texts = ["".join(lesson(rng)) for _ in range(64)]
        batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="session")
def tool_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the taught model."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tool-model")
    tokenizer = make_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
        ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=256, **sizes, **ends))
        teach(model.train(), tokenizer, steps=150)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def lookup(key: str) -> str:
    """The digit behind a letter.

    Args:
        key: the letter
    """
    return VALUES[key]


class Vault:
    """An environment that opens when the letter of its problem is looked up."""

    def __init__(self) -> None:
        self.key, self.opened, self.resets = "", False, 0

    def reset(self, key: str, **columns: Any) -> None:
        self.key, self.opened, self.resets = key, False, self.resets + 1

    def lookup(self, key: str) -> str:
        """The digit behind a letter.

        Args:
            key: the letter
        """
        self.opened |= key == self.key
        return VALUES[key]

    def get_reward(self) -> float:
        return float(self.opened)


def hint_and_guess(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
    """A rollout function of two turns: the policy writes, is told the digit in any case, and writes again."""
    import torch

    tokenizer, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    texts = [tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False) for prompt in prompts]
    hints = [f"<|tool|>{VALUES[prompt[-1]['content'][0]]}<|end|><|assistant|>" for prompt in prompts]
    prompt_ids, hint_ids = (tokenizer(rows, add_special_tokens=False)["input_ids"] for rows in (texts, hints))

    def turn(rows: list[list[int]]) -> list[list[int]]:
        batch = tokenizer.pad({"input_ids": rows}, padding_side="left", return_tensors="pt")
        with torch.no_grad():
            drawn = model.generate(**batch, do_sample=True, max_new_tokens=8)[:, batch["input_ids"].size(1) :].tolist()
        return [[i for i in row if i != tokenizer.pad_token_id] for row in drawn]

    first = turn(prompt_ids)
    second = turn([p + f + h for p, f, h in zip(prompt_ids, first, hint_ids, strict=True)])
    parts = list(zip(first, hint_ids, second, strict=True))
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": [f + h + s for f, h, s in parts],
        "logprobs": None,
        "env_mask": [[1] * len(f) + [0] * len(h) + [1] * len(s) for f, h, s in parts],
        "said": [tokenizer.decode(s, skip_special_tokens=True) for s in second],
    }


def said_right(completions: list[Any], value: list[str], **columns: Any) -> list[float]:
    """1 where the last message is the digit."""
    return [float(chat[-1]["content"] == digit) for chat, digit in zip(completions, value, strict=True)]


def said_last(said: list[str], value: list[str], **columns: Any) -> list[float]:
    """The same of what a rollout function hands on."""
    return [float(text == digit) for text, digit in zip(said, value, strict=True)]


def rows_of(keys: str) -> list[dict[str, Any]]:
    return [{"prompt": [{"role": "user", "content": f"{key}?"}], "key": key, "value": VALUES[key]} for key in keys]


@pytest.fixture
def make_tool_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool_model: Path) -> Callable[..., Any]:
    """A trl.GRPOTrainer on the letters a to h, 4 rollouts of each 2 a step; `kind` says how it generates."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    kinds: dict[str, dict[str, Any]] = {
        "plain": {"reward_funcs": said_right},
        "tools": {"reward_funcs": said_right, "tools": [lookup]},
        "environment_factory": {"environment_factory": Vault},
        "rollout_func": {"reward_funcs": said_last, "rollout_func": hint_and_guess},
    }

    def make(kind: str, name: str = "run", arguments: dict[str, Any] | None = None, **overrides: Any) -> Any:
        folder = tmp_path / name
        monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(folder / "tensorboard"))
        settings: dict[str, Any] = {
            "output_dir": str(folder),
            "max_steps": 2,
            "learning_rate": 1e-3,
            "lr_scheduler_type": "constant",
            "beta": 0.01,
            "num_generations": 4,
            "per_device_train_batch_size": 16,
            "max_completion_length": 24,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "bf16": False,
            "gradient_checkpointing": False,
            "use_cpu": True,
            "disable_tqdm": True,
            "seed": 3,
        }
        return GRPOTrainer(
            model=str(tool_model),
            args=GRPOConfig(**{**settings, **overrides}),
            **{"train_dataset": Dataset.from_list(rows_of(KEYS[:8])), **kinds[kind], **(arguments or {})},
        )

    return make


class Letters:
    """The digits behind letters, judged by the text of the last turn."""

    name, version = "letters", "1"

    def __init__(self, keys: str = KEYS[8:]) -> None:
        from offleash.eval.problem import Problem

        self.problems = [
            Problem(row["key"], row["prompt"], row["value"], {"key": row["key"], "value": row["value"]})
            for row in rows_of(keys)
        ]

    def verify(self, problems: Any, completions: Any, truncated: Any = None) -> list[Any]:
        from offleash.eval.problem import Verdict

        return [
            Verdict(text or None, text == problem.gold, "ok" if text else "no_answer")
            for problem, text in zip(problems, completions, strict=True)
        ]

    def correct_answers(self, problem: Any) -> tuple[str, ...]:
        return (problem.gold,)


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
def rewarded_letters() -> Callable[..., Any]:
    """The same, judged by a reward function."""
    return rewarded


def rewarded(correct: Any, threshold: float | None = None, keys: str = KEYS[8:], **columns: Any) -> Any:
    from offleash.eval.tasks.dataset_task import DatasetTask

    rows = [{**row, **{name: value(row) for name, value in columns.items()}} for row in rows_of(keys)]
    return DatasetTask(rows, correct, threshold=threshold, answer=False, ids="key", gold="value", name="letters")
