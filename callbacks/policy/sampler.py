"""Samples from the policy (or the base) through the trainer's own generation path.

The same code serves transformers, colocated and served vLLM, one process or many, ZeRO-3 included: every rank makes the
same calls with the same number of prompts, padding is dropped, results are gathered. Training is not affected: random
state, sampling settings and train mode are restored.

Samples are drawn in rounds. A round holds a block of sample indices for many problems and has its own seed, made of
what it holds: a round that was lost can be drawn again, alone, and gives the same samples. The trainer draws a whole
round with one seed, so a pool that grows gets new, independent samples; they are those of a pool drawn at once if the
rounds are the same, as when k was a multiple of the block size and the last round was full.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from accelerate.utils import gather_object, set_seed
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm

from offleash.callbacks.policy.frozen_base import frozen_base
from offleash.callbacks.policy.multi_turn import MultiTurn
from offleash.callbacks.policy.ranks import Ranks
from offleash.callbacks.policy.stream import Stream, Wanted, is_due
from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_seam import (
    TokenizedPrompts,
    generate,
    sampling_as,
    sampling_group,
    scoring,
    taking_back,
    text_tokenizer,
    to_device,
    token_logps,
    tokenize_prompts,
)
from offleash.eval.images import has_images, with_pictures
from offleash.eval.pool.ledger import Block, runs
from offleash.eval.problem import Problem, Verdict
from offleash.eval.sampling import Sampling, round_seed

T = TypeVar("T")

PER_TOKEN = ("token_type_ids", "mm_token_type_ids")
"""Fields of a processor's output that have one value per token."""


class Round(NamedTuple):
    """Blocks of one size that are drawn at once."""

    blocks: tuple[Block, ...]
    scored: int
    """Of each block, or of each problem of a stream, the first so many draws are scored."""
    stream: Stream | None = None


Judge = Callable[[Sequence[int], Sequence[str], Sequence[bool]], Sequence[Verdict]]
"""From problems, completions and whether each was truncated to verdicts."""


@dataclass(slots=True)
class Draw:
    """One completion. Scores are at the trainer's temperature, None where the round was not scored.

    Of a rollout of several turns `completion` is the transcript; tokens and scores are of what the policy wrote.
    """

    problem: int
    index: int
    completion: str
    truncated: bool
    tokens: int
    logprob: float | None = None
    entropy: float | None = None
    base_logprob: float | None = None
    reward: float | None = None
    """Of the rollout, where a reward is the judge; NaN where it does not apply."""
    verdict: Verdict | None = None
    """Where the draw of others depended on it."""


class Drawn(NamedTuple):
    """A draw with its tokens, on the rank that made it. `written` is 1 for a token of the policy, 0 for any other."""

    draw: Draw
    prompt_ids: list[int]
    ids: list[int]
    written: list[int]


def block_size(score_k: int, batch: int) -> int:
    """Of the blocks that rounds are made of: as many draws as are scored, or `batch` if none is."""
    return min(score_k or batch, batch)


def plan_rounds(
    problems: int,
    k: int,
    score_k: int,
    batch: int,
    missing: Sequence[np.ndarray] | None = None,
    *,
    stream: int = 1,
    successes: int | None = None,
) -> list[Round]:
    """Split what is missing of k draws of each problem (default: all) into rounds of at most `batch` sequences over all
    ranks, `stream` times as many where none is scored.

    Blocks are of `block_size` draws, whatever k is, and cut at multiples of that, so that a pool which grows gets the
    blocks it would have had. Scored and unscored draws are in separate rounds, and so are blocks of different sizes.
    Of a plan that stops at `successes` only so many of a problem are scored: all problems have these.
    """
    size = block_size(score_k, batch)
    lacking_pk = np.ones((problems, k), dtype=bool)
    if missing is not None:
        lacking_pk[:] = False
        for problem, indices in enumerate(missing):
            lacking_pk[problem, indices] = True
    blocks = [block for p, lacking_k in enumerate(lacking_pk) for block in runs(p, lacking_k, size)]
    groups: dict[tuple[int, int], list[Block]] = {}
    for block in sorted(blocks, key=lambda block: (block.start, block.problem)):
        scored = min(max(min(score_k, successes or k) - block.start, 0), block.size)
        groups.setdefault((scored, block.size), []).append(block)
    rounds: list[Round] = []
    for (scored, each), share in groups.items():
        per_round = max((batch if scored else batch * stream) // each, 1)
        rounds += [Round(tuple(share[i : i + per_round]), scored) for i in range(0, len(share), per_round)]
    return rounds


class TrainerSampler:
    """Draws rounds of samples; every method is collective and must be called on every rank.

    `multi_turn` draws the rollouts of a trainer whose completions are more than one turn of the model.
    """

    def __init__(
        self,
        trainer: PolicyTrainer,
        problems: Sequence[Problem],
        sampling: Sampling,
        kl_to_base: bool,
        multi_turn: MultiTurn | None = None,
    ) -> None:
        self.trainer = trainer
        self.sampling = sampling
        self.base = frozen_base(trainer)
        self.ranks = Ranks(trainer.accelerator)
        self.kl_to_base = kl_to_base
        self.problem_ids = [problem.id for problem in problems]
        self.prompts = [problem.prompt for problem in problems]
        self.with_images = any(map(has_images, problems))
        self.multi_turn = multi_turn
        self.prompt_ids = [] if multi_turn else self._prompt_ids()
        """Of one turn: with environments a prompt is known only once they have been reset."""
        tokenizer = text_tokenizer(trainer)
        self.pad_token_id: int = tokenizer.pad_token_id
        self.end_ids = {*trainer.eos_token_ids, tokenizer.pad_token_id}
        self.tokenizer = tokenizer
        self.decode = tokenizer.batch_decode

    def _prompt_ids(self) -> list[list[int]]:
        if not self.with_images:
            return tokenize_prompts(self.trainer, self.prompts).ids
        # One by one: the pixels of all problems together may not fit.
        return [tokenize_prompts(self.trainer, [with_pictures(prompt)]).ids[0] for prompt in self.prompts]

    def draw(
        self, rounds: Sequence[Round], seed: int, *, from_base: bool = False, judge: Judge | None = None
    ) -> Iterator[list[Draw]]:
        """One list of draws per round, of a stream several; the same on every rank. `from_base` draws from the frozen
        base.

        `judge`: for rounds that are drawn in a stream.
        """
        trainer = self.trainer
        was_training = trainer.model.training
        for round_ in rounds:
            # Isolated round by round: between rounds the caller runs with its own random state.
            with isolated_rng(), sampling_as(trainer, self.sampling):
                content = [(self.problem_ids[block.problem], block.start, block.size) for block in round_.blocks]
                set_seed(round_seed(seed, content) + sampling_group(trainer))
                trainer.model.eval()
                try:
                    drawn = partial(self._generate, round_, from_base, judge)
                    waits = self.is_sharded or trainer.use_vllm or self.multi_turn is not None
                    local = self.ranks.on_all(drawn, waits=waits)
                    if round_.stream is not None:
                        self._score_shared([one for one in local if one.draw.index < round_.scored], from_base)
                    elif round_.scored:
                        size = round_.blocks[0].size
                        shown = [one for i, one in enumerate(local) if i % size < round_.scored]
                        self.ranks.on_all(partial(self._score, shown, from_base), waits=self.is_sharded)
                finally:
                    trainer.model.train(was_training)
            draws = [one.draw for one in local]
            if round_.stream is not None:
                yield from self.ranks.gathered(draws)
            else:
                yield gather_object(draws)[: sum(block.size for block in round_.blocks)]

    @property
    def is_sharded(self) -> bool:
        """Whether ranks may wait for each other's weights in a forward pass."""
        return bool(self.trainer.is_deepspeed_enabled or self.trainer.is_fsdp_enabled)

    def encode(self, text: str, tokens: int) -> list[int]:
        """A stored completion as token ids, with the end token unless it was truncated: `tokens` were drawn."""
        ids = [int(i) for i in self.tokenizer(text, add_special_tokens=False)["input_ids"]]
        truncated = tokens == self.sampling.max_new_tokens and len(ids) >= tokens
        return ids if truncated else [*ids, int(self.tokenizer.eos_token_id)]

    def score(self, rows: Sequence[tuple[int, list[int]]]) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities of completions (problem, token ids) under policy and base, by teacher forcing.

        The same rows on every rank; so is the result.
        """
        if not rows:
            return np.zeros(0), np.zeros(0)
        trainer, accelerator = self.trainer, self.trainer.accelerator
        mine = self._share(rows)
        problems = [problem for problem, _ in mine]
        pairs = [(self.prompt_ids[problem], ids) for problem, ids in mine]
        inputs = scoring_inputs(pairs, self.pad_token_id, accelerator.device)
        size, mask = trainer.args.per_device_train_batch_size, inputs["mask"].double()
        with scoring(trainer):
            own, _ = self._logps(trainer.model, inputs, problems, size)
            with self.base.scored() as base:
                others, _ = self._logps(base, inputs, problems, size)
        pairs_s = torch.stack([(logps.double() * mask).sum(1) for logps in (own, others)], dim=1).tolist()
        policy_s, base_s = np.array(gather_object(pairs_s)[: len(rows)]).T
        return policy_s, base_s

    def _local_blocks(self, round_: Round) -> list[Block]:
        if round_.stream is not None:
            return list(round_.stream.shares[self.trainer.accelerator.process_index])
        return self._share(round_.blocks)

    def _share(self, items: Sequence[T]) -> list[T]:
        """This rank's share, padded with copies of the first one so that every rank has the same number."""
        count, rank = self.trainer.accelerator.num_processes, self.trainer.accelerator.process_index
        size = -(-len(items) // count)
        return [*items, *[items[0]] * (size * count - len(items))][rank * size : (rank + 1) * size]

    def _generate(self, round_: Round, from_base: bool, judge: Judge | None) -> list[Drawn]:
        blocks = self._local_blocks(round_)
        size = blocks[0].size
        slots = [(block.problem, block.start + i) for block in blocks for i in range(block.size)]
        with self.base.sampled() if from_base else nullcontext():
            if round_.stream is not None:
                assert judge is not None
                return self._streamed(slots, round_.stream, judge)
            return self._turn(slots, size) if self.multi_turn is None else self._turns(self.multi_turn, slots, size)

    def _streamed(self, slots: Sequence[tuple[int, int]], stream: Stream, judge: Judge) -> list[Drawn]:
        wanted, waiting = Wanted(slots, stream.needed), list[tuple[int, list[int]]]()
        verdicts: dict[int, Verdict] = {}
        failures: list[Exception] = []
        begun, spent = time.monotonic(), 0.0
        hidden = self.trainer.args.disable_tqdm or not self.ranks.is_main
        bar = tqdm(desc="stream", total=len(slots), unit="draw", leave=False, disable=hidden)

        def unwanted(ended: Sequence[tuple[int, list[int]]]) -> set[int]:
            nonlocal spent
            wanted.end([place for place, _ in ended])
            waiting.extend(ended)
            bar.update(len(slots) - wanted.running - bar.n)
            now = time.monotonic()
            if not is_due(len(waiting), wanted.running, spent, now - begun):
                return set()
            places, rows = zip(*waiting, strict=True)
            waiting.clear()
            texts = self.decode(rows, skip_special_tokens=True)
            try:
                found = judge([slots[place][0] for place in places], texts, [self._is_cut(ids) for ids in rows])
            except Exception as error:  # raised on every rank, once no engine waits for another
                failures.append(error)
                return wanted.take_back_all()
            spent += time.monotonic() - now
            verdicts.update(zip(places, found, strict=True))
            return wanted.take_back([place for place in places if verdicts[place].correct])

        with bar, taking_back(self.trainer, unwanted):
            drawn = self._turn(slots, 1)
        self.ranks.on_all(partial(_raise_first, failures), waits=False)
        for place, verdict in verdicts.items():
            drawn[place].draw.verdict = verdict
        return [one for place, one in enumerate(drawn) if place in wanted.ended]

    def _is_cut(self, ids: Sequence[int]) -> bool:
        return not ids or ids[-1] not in self.end_ids

    def _turn(self, slots: Sequence[tuple[int, int]], size: int) -> list[Drawn]:
        problems = [problem for problem, _ in slots]
        prompts = [self.prompt_ids[problem] for problem in problems]
        images, fields = self._shown(problems)
        completions = generate(self.trainer, TokenizedPrompts(prompts, images, fields), size)
        texts = self.decode(completions, skip_special_tokens=True)
        return [
            Drawn(
                Draw(problem, index, text, self._is_cut(ids), len(ids)),
                *(self.prompt_ids[problem], ids, [1] * len(ids)),
            )
            for (problem, index), text, ids in zip(slots, texts, completions, strict=True)
        ]

    def _turns(self, multi_turn: MultiTurn, slots: Sequence[tuple[int, int]], size: int) -> list[Drawn]:
        return [
            Drawn(
                Draw(*slot, one.completion, one.truncated, sum(one.written), reward=one.reward),
                *(one.prompt_ids, one.ids, one.written),
            )
            for slot, one in zip(slots, multi_turn.draw([problem for problem, _ in slots], size), strict=True)
        ]

    def _shown(self, problems: Sequence[int]) -> tuple[list[Any] | None, dict[str, Any]]:
        """What TRL's generation takes in addition to tokens; vLLM preprocesses images itself."""
        if not self.with_images:
            return None, {}
        if not self.trainer.use_vllm:
            return self._pictures(problems)
        images = {problem: self._images(problem) for problem in set(problems)}
        return [images[problem] for problem in problems], {}

    def _pictures(self, problems: Sequence[int]) -> tuple[list[Any], dict[str, Any]]:
        """The images of each problem, and the processor's fields for all of them."""
        prompts = {problem: with_pictures(self.prompts[problem]) for problem in set(problems)}
        _, images, fields = tokenize_prompts(self.trainer, [prompts[problem] for problem in problems])
        return images or [], fields

    def _images(self, problem: int) -> list[Any]:
        messages: Any = with_pictures(self.prompts[problem])
        return [part["image"] for message in messages for part in message["content"] if part["type"] == "image"]

    def _score_shared(self, local: list[Drawn], from_base: bool) -> None:
        """Score draws of which some ranks have more than others: each works on as many, and they are exchanged."""
        if not (everywhere := gather_object(local)):
            return
        mine = self._share(everywhere)
        self.ranks.on_all(partial(self._score, mine, from_base), waits=self.is_sharded)
        scored = {(draw.problem, draw.index): draw for draw in gather_object([one.draw for one in mine])}
        for draw in (one.draw for one in local):
            found = scored[draw.problem, draw.index]
            draw.logprob, draw.entropy, draw.base_logprob = found.logprob, found.entropy, found.base_logprob

    def _score(self, local: list[Drawn], from_base: bool) -> None:
        """Fill in log-probability, mean token entropy and the base's log-probability, by teacher forcing."""
        trainer = self.trainer
        pairs, written = [(one.prompt_ids, one.ids) for one in local], [one.written for one in local]
        inputs = scoring_inputs(pairs, self.pad_token_id, trainer.accelerator.device, written)
        problems = [one.draw.problem for one in local]
        mask = inputs["mask"].float()
        batch_size = trainer.args.per_device_train_batch_size
        with scoring(trainer):
            base_logps: Any = None
            if from_base or self.kl_to_base:
                with self.base.scored() as base:
                    base_logps, base_entropies = self._logps(base, inputs, problems, batch_size)
            logps, entropies = (
                (base_logps, base_entropies) if from_base else self._logps(trainer.model, inputs, problems, batch_size)
            )
        for i, draw in enumerate(one.draw for one in local):
            draw.logprob = float((logps[i] * mask[i]).sum())
            draw.entropy = float((entropies[i] * mask[i]).sum() / max(draw.tokens, 1))
            draw.base_logprob = None if base_logps is None else float((base_logps[i] * mask[i]).sum())

    def _logps(
        self, model: Any, inputs: dict[str, torch.Tensor], problems: Sequence[int], batch_size: int
    ) -> tuple[Any, Any]:
        if not self.with_images:
            return self._logps_of(model, inputs, batch_size)
        parts = []
        for start in range(0, len(problems), batch_size):
            rows = {name: values[start : start + batch_size] for name, values in inputs.items()}
            pixels = self._pixels(problems[start : start + batch_size], rows)
            parts.append(self._logps_of(model, rows, batch_size, **pixels))
        logps, entropies = (torch.cat(found) for found in zip(*parts, strict=True))
        return logps, entropies

    def _logps_of(
        self, model: Any, inputs: dict[str, torch.Tensor], batch_size: int, **pixels: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = inputs["input_ids"], inputs["attention_mask"], inputs["mask"].size(1)
        return token_logps(self.trainer, model, *rows, batch_size=batch_size, entropies=True, **pixels)

    def _pixels(self, problems: Sequence[int], rows: dict[str, torch.Tensor]) -> dict[str, Any]:
        """What scoring takes in addition to the tokens of rows that are scored at once."""
        images, fields = self._pictures(problems)
        width, new = rows["input_ids"].size(1), rows["mask"].size(1)
        made = {}
        for name, values in fields.items():
            if name in PER_TOKEN:
                made[name] = torch.tensor([[*[0] * (width - new - len(ids)), *ids, *[0] * new] for ids in values])
            else:
                made[name] = torch.as_tensor(np.array(values))
        made = to_device(self.trainer, made)
        # As one chunk: TRL need not know where to split the pixels between sequences.
        tiles = [len(made["pixel_values"]), *[0] * (len(problems) - 1)]
        return {**made, "num_images": [len(shown) for shown in images], "num_tiles": tiles}


def scoring_inputs(
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    pad_token_id: int,
    device: torch.device,
    written: Sequence[Sequence[int]] | None = None,
) -> dict[str, torch.Tensor]:
    """Prompts, padded on the left, with completions, padded on the right.

    `mask` is of the completions alone, without those of their tokens that have a 0 in `written`.
    """
    prompt_ids, prompt_mask = _padded([prompt for prompt, _ in pairs], pad_token_id, "left")
    completion_ids, completion_mask = _padded([completion for _, completion in pairs], pad_token_id, "right")
    inputs = {
        "input_ids": torch.cat([prompt_ids, completion_ids], dim=1),
        "attention_mask": torch.cat([prompt_mask, completion_mask], dim=1),
        "mask": completion_mask if written is None else _padded(written, 0, "right")[0],
    }
    return {name: values.to(device) for name, values in inputs.items()}


def _padded(rows: Sequence[Sequence[int]], fill: int, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    masks = [torch.ones_like(tensor) for tensor in tensors]
    return pad_sequence(tensors, True, fill, side), pad_sequence(masks, True, 0, side)


@contextmanager
def isolated_rng() -> Iterator[None]:
    """The block may seed and draw random numbers; afterwards the random state is what it was before."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    python_state, numpy_state = random.getstate(), np.random.get_state()
    mps_state = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            if mps_state is not None:
                torch.mps.set_rng_state(mps_state)


def _raise_first(failures: Sequence[Exception]) -> None:
    if failures:
        raise failures[0]
