"""Makes the lab's base model: a character tokenizer and a small Llama that has read correct countdown answers.

    python recipes/lab/make_base.py                # pretrains, writes recipes/lab/base, prints how well it plays
    python recipes/lab/make_base.py --evaluate     # only measures the model that is already there

Each training example is a random problem of the train split with a spelling of a solution, chosen at random, and the
loss is on the answer and its end only. So the model learns every way to answer, none of them for certain: what a base
model is to reinforcement learning. Same seed, threads and machine: same weights, bit for bit.
"""

import argparse
import hashlib
import random
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from tqdm import tqdm
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from offleash.eval.tasks.countdown import Countdown

BASE = Path(__file__).parent / "base"
PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
CHARACTERS = "0123456789+-*()=: "
MAX_LENGTH = 128  # positions; a three-number problem with its answer takes at most 27
IGNORED = -100


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character. Adds no beginning or end by itself; pads on the left, as generation needs."""
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, UNK, *CHARACTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        padding_side="left",
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """0.8 million parameters; embeddings tied."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attention_dropout=0.0,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model


Example = tuple[list[int], int]  # token ids of prompt + answer + end, and how many of them are the prompt


def encode_task(task: Countdown, tokenizer: PreTrainedTokenizerFast) -> list[list[Example]]:
    """Per problem of a strict task, one example for each spelling of its solutions."""
    problems = []
    for problem in task.problems:
        prompt = tokenizer(problem.prompt)["input_ids"]
        texts = sorted(text for name in task.correct_answers(problem) for text in task.spellings(problem, name))
        answers = (tokenizer(text)["input_ids"] for text in texts)
        problems.append([(prompt + answer + [tokenizer.eos_token_id], len(prompt)) for answer in answers])
    return problems


def collate(examples: Sequence[Example], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, both [batch, longest]; padded on the right, where causal attention cannot look."""
    longest = max(len(ids) for ids, _ in examples)
    inputs = torch.full((len(examples), longest), pad)
    labels = torch.full((len(examples), longest), IGNORED)
    for row, (ids, prompt) in enumerate(examples):
        inputs[row, : len(ids)] = torch.tensor(ids)
        labels[row, prompt : len(ids)] = torch.tensor(ids[prompt:])
    return inputs, labels


def pretrain(
    model: LlamaForCausalLM, problems: list[list[Example]], steps: int, batch: int, peak_lr: float, seed: int
) -> float:
    """AdamW under a one-cycle schedule. Returns the mean loss of the last tenth, in nats per token."""
    chooser = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak_lr, total_steps=steps, pct_start=0.1)
    losses: list[float] = []
    model.train()
    for _ in (bar := tqdm(range(steps), desc="pretraining", unit="step")):
        examples = [chooser.choice(chooser.choice(problems)) for _ in range(batch)]
        inputs, labels = collate(examples, model.config.pad_token_id)
        loss = model(input_ids=inputs, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        bar.set_postfix(loss=f"{np.mean(losses[-50:]):.3f}")
    return float(np.mean(losses[-max(1, steps // 10) :]))


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    """Weights in half precision under a config that says float32: half the size, and loaders still get float32."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    weights = folder / "model.safetensors"
    halves = {name: tensor.to(torch.float16) for name, tensor in load_file(weights).items()}
    save_file(halves, weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # safetensors writes for the owner alone; the package is read by others
    return weights


@torch.no_grad()
def sample(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str], max_new_tokens: int = 16
) -> list[tuple[str, bool]]:
    """One completion per prompt at temperature 1, with whether it was cut off before its end."""
    encoded = tokenizer(list(prompts), return_tensors="pt", padding=True)
    settings = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=max_new_tokens,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    output = model.generate(
        input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"], generation_config=settings
    )[:, encoded["input_ids"].shape[1] :]
    texts = tokenizer.batch_decode(output, skip_special_tokens=True)
    ended = (output == tokenizer.eos_token_id).any(dim=1).tolist()
    return [(text, not end) for text, end in zip(texts, ended, strict=True)]


def evaluate(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, task: Countdown, draws: int, seed: int
) -> dict[str, float]:
    """pass@k, no-answer rate and how many of the correct answers appear, from `draws` samples of every problem."""
    torch.manual_seed(seed)
    model.eval()
    per_call = max(1, 2048 // draws)
    correct_p: list[int] = []
    seen = unanswered = 0
    for start in tqdm(range(0, len(task.problems), per_call), desc="evaluating", unit="batch"):
        problems = [problem for problem in task.problems[start : start + per_call] for _ in range(draws)]
        completions, truncated = zip(*sample(model, tokenizer, [str(p.prompt) for p in problems]), strict=True)
        verdicts = task.verify(problems, completions, truncated)
        unanswered += sum(verdict.answer is None for verdict in verdicts)
        for first in range(0, len(verdicts), draws):
            right = [verdict.answer for verdict in verdicts[first : first + draws] if verdict.correct]
            correct_p.append(len(right))
            seen += len(set(right))
    possible = sum(len(task.correct_answers(problem)) for problem in task.problems)
    budgets = [k for k in (1, 4, 16, 64, 256) if k <= draws]
    return {
        **{f"pass@{k}": float(np.mean([pass_at_k(draws, c, k) for c in correct_p])) for k in budgets},
        "correct answers per problem": possible / len(task.problems),
        f"of which seen in {draws} draws": seen / len(task.problems),
        "share of correct answers seen": seen / possible,
        "no-answer rate": unanswered / (draws * len(task.problems)),
    }


def pass_at_k(draws: int, correct: int, k: int) -> float:
    """The unbiased estimator 1 - C(draws - correct, k) / C(draws, k), as a product (Chen et al. 2021, eq. 1)."""
    if draws - correct < k:
        return 1.0
    return 1.0 - float(np.prod(1.0 - k / np.arange(draws - correct + 1, draws + 1)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Pretrain the lab's base model on countdown, or measure the one that is there.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=BASE, help="folder of the model")
    parser.add_argument("--evaluate", action="store_true", help="measure the model in --out, train nothing")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, examples and evaluation draws")
    parser.add_argument("--steps", type=int, default=800, help="optimizer steps")
    parser.add_argument("--batch", type=int, default=128, help="examples per step")
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate of the one-cycle schedule")
    parser.add_argument("--train-problems", type=int, default=20_000, help="problems of the train split to draw from")
    parser.add_argument("--probe-problems", type=int, default=128, help="held-out problems to measure on")
    parser.add_argument("--draws", type=int, default=256, help="samples of each held-out problem")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads; part of what makes a run repeatable")
    return parser.parse_args()


def make(arguments: argparse.Namespace) -> None:
    torch.manual_seed(arguments.seed)
    torch.use_deterministic_algorithms(True)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    task = Countdown(split="train", n=arguments.train_problems, seed=arguments.seed, strict=True)
    start = time.perf_counter()
    loss = pretrain(model, encode_task(task, tokenizer), arguments.steps, arguments.batch, arguments.lr, arguments.seed)
    seconds = time.perf_counter() - start
    weights = save(model, tokenizer, arguments.out)
    print(f"loss {loss:.4f} nats per token after {arguments.steps} steps, {seconds:.0f} s")
    print(f"{model.num_parameters():,} parameters, {weights.stat().st_size:,} bytes in {weights.name}")


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    if not arguments.evaluate:
        make(arguments)
    digest = hashlib.sha256((arguments.out / "model.safetensors").read_bytes()).hexdigest()
    print(f"sha256 {digest}")
    model = AutoModelForCausalLM.from_pretrained(arguments.out)
    tokenizer = AutoTokenizer.from_pretrained(arguments.out)
    task = Countdown(split="probe", n=arguments.probe_problems, seed=arguments.seed)
    for name, value in evaluate(model, tokenizer, task, arguments.draws, arguments.seed).items():
        print(f"{name:<34} {value:.4f}")


if __name__ == "__main__":
    main()
