"""Makes the labs' base models: a character tokenizer and a small Llama that has read correct completions.

    python recipes/lab/make_base.py                       # countdown: pretrains, writes recipes/lab/base, measures
    python recipes/lab/make_base.py --lab colouring       # or change
    python recipes/lab/make_base.py --lab change --measure   # only measures the model that is already there

Each training example is a random problem of the train split with one of its correct completions, and the loss is on
the completion and its end only. Which completion is a matter of habit: `habits_*.py` shows some families of solutions
often, some rarely and some never. So the base has favourites, rarities and blind spots, all of which can be listed.
Same seed, one thread, same machine: same weights, bit for bit.
"""

import argparse
import hashlib
import time
from collections.abc import Callable, Sequence
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

from offleash.recipes.lab import habits_change, habits_colouring, habits_countdown
from offleash.recipes.lab.properties import properties, table
from offleash.recipes.lab.teaching import Lab, Teacher

HERE = Path(__file__).parent
README = HERE / "README.md"
LABS: dict[str, Lab] = {lab.name: lab for lab in (habits_countdown.LAB, habits_colouring.LAB, habits_change.LAB)}
PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
CHARACTERS = "0123456789+-*()=: abcdefghRGBY>|"
MAX_LENGTH = 128  # positions; the longest problem with its completion takes less than half
IGNORED = -100

Example = tuple[list[int], int]
"""Token ids of prompt, completion and end, and how many of them are the prompt."""


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


def build_model(tokenizer: PreTrainedTokenizerFast, hidden: int, layers: int) -> LlamaForCausalLM:
    """A Llama with four heads and tied embeddings."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
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


def encoder(tokenizer: PreTrainedTokenizerFast) -> Callable[[tuple[str, str]], Example]:
    """From a prompt and a completion to token ids, one per character."""
    ids = tokenizer.get_vocab()

    def encode(example: tuple[str, str]) -> Example:
        prompt, completion = example
        return [*(ids[c] for c in prompt), *(ids[c] for c in completion), ids[EOS]], len(prompt)

    return encode


def collate(examples: Sequence[Example], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, both [batch, longest]; padded on the right, where causal attention cannot look."""
    longest = max(len(ids) for ids, _ in examples)
    inputs = torch.full((len(examples), longest), pad)
    labels = torch.full((len(examples), longest), IGNORED)
    for row, (ids, prompt) in enumerate(examples):
        inputs[row, : len(ids)] = torch.tensor(ids)
        labels[row, prompt : len(ids)] = torch.tensor(ids[prompt:])
    return inputs, labels


def pretrain(model: LlamaForCausalLM, draw: Callable[[], Example], steps: int, batch: int, peak_lr: float) -> float:
    """AdamW under a one-cycle schedule. Returns the mean loss of the last tenth, in nats per token."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak_lr, total_steps=steps, pct_start=0.1)
    losses: list[float] = []
    model.train()
    for _ in (bar := tqdm(range(steps), desc="pretraining", unit="step", mininterval=5)):
        inputs, labels = collate([draw() for _ in range(batch)], model.config.pad_token_id)
        loss = model(input_ids=inputs, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        bar.set_postfix(loss=f"{np.mean(losses[-50:]):.3f}", refresh=False)
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


def make(lab: Lab, folder: Path, seed: int) -> None:
    """Pretrain the base of a lab and write it."""
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, lab.hidden, lab.layers)
    teacher, encode = Teacher(lab, seed), encoder(tokenizer)
    start = time.perf_counter()
    loss = pretrain(model, lambda: encode(teacher.example()), lab.steps, lab.batch, lab.peak_lr)
    seconds = time.perf_counter() - start
    weights = save(model, tokenizer, folder)
    print(f"loss {loss:.4f} nats per token after {lab.steps} steps, {seconds:.0f} s")
    print(f"{model.num_parameters():,} parameters, {weights.stat().st_size:,} bytes in {weights.name}")


def measure(lab: Lab, folder: Path, problems: int) -> str:
    """The table of properties on problems of the validation and the probe split."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    columns = [
        (split, properties(model, tokenizer, lab.held_out(split, problems))) for split in ("validation", "probe")
    ]
    return table(columns)


def with_table(readme: str, name: str, measured: str) -> str:
    """The README with what was measured of a lab between its two marks."""
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, found, rest = readme.partition(start)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"the README has no {start.strip()} or no {end.strip()} after it")
    return f"{before}{start}{measured}\n{end}{after}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Pretrain the base model of a lab, or measure the one that is there.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--lab", choices=LABS, default="countdown", help="which of the labs")
    parser.add_argument("--out", type=Path, help="folder of the model, if not the lab's own")
    parser.add_argument("--measure", action="store_true", help="measure the model that is there, train nothing")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and examples")
    parser.add_argument("--steps", type=int, help="optimizer steps, if not the lab's own")
    parser.add_argument("--problems", type=int, default=512, help="held-out problems of each split to measure on")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    lab = LABS[arguments.lab]
    folder = arguments.out or HERE / lab.folder
    if not arguments.measure:
        make(lab if arguments.steps is None else lab._replace(steps=arguments.steps), folder, arguments.seed)
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    measured = f"sha256 `{digest}`\n\n{measure(lab, folder, arguments.problems)}"
    print(measured)
    if arguments.out is None:
        README.write_text(with_table(README.read_text(), lab.name, measured))


if __name__ == "__main__":
    main()
