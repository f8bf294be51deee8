"""WeightSyncCheck: vLLM must sample from the weights in training, and a server that died must not hang the run.

TRL copies the weights into the engine before it generates. An engine that missed a copy, or got only part of one (tied
embeddings, packed layers), still writes plausible text, and the run learns from another model's samples. So before the
first generation at each step, be it for training, monitor or base, engine and trainer score the same tokens, and a
mismatch stops the run. The tokens are the ends of prompts followed by gold answers: the beginning of a chat template
hardly changes in training. Read against trl 1.16 and vLLM 0.31.

With sleep mode the engine drops its weights after each generation and TRL copies them again before the next: then every
generation is checked, after the copy. vLLM ignores sleep mode on CPUs, so no test runs it with a real engine.

TRL waits for vLLM's server without a timeout, since a batch of rollouts may take an hour. But a server whose engine was
killed shuts down only after its open requests, which are never answered. So while a request is pending the server's
health is checked, and after three failed checks the request raises.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from functools import cached_property, partial
from typing import Any, NamedTuple, NoReturn

import httpx
import numpy as np
import numpy.typing as npt
import torch
from accelerate.utils import gather_object
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from offleash.callbacks.observer import run_observer
from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_seam import (
    before_generate,
    engine_dtype,
    engine_logps,
    has_adapter_off,
    is_server,
    takes_images,
    text_tokenizer,
    token_logits,
    tokenize_prompts,
    wrap_requests,
)
from offleash.callbacks.tags import SERVED_DIFFERENCE
from offleash.eval.console import say
from offleash.eval.errors import EngineError, first_line
from offleash.eval.images import without_images
from offleash.eval.problem import Task

PROMPTS, TOKENS = 4, 48
"""Sequences to score, and how many tokens of a prompt's end and of a gold answer's beginning each has."""
STILL = 0.1
"""An engine that moved by less than this fraction of the trainer's movement did not follow it."""
HEALTH_SECONDS, HEALTH_CHECKS = 10.0, 3
"""Time between health checks of a server with a pending request, and how many in a row may fail. One that is merely
busy, with an answer of millions of tokens, accepts the connection and answers late: that is no failure."""


class Noise(NamedTuple):
    """Effect of rounding on log-probabilities: mean absolute differences in nats."""

    between: float
    """The largest difference between trainer and engine that rounding explains."""
    seen: float
    """If the trainer moved by more than this, an engine that follows it has visibly moved too."""


NOISE = {"float32": Noise(1e-3, 1e-5), "float16": Noise(0.05, 2e-3), "bfloat16": Noise(0.3, 0.02)}
"""Two bfloat16 engines differ by a few hundredths on uncertain tokens; different weights differ by nats."""


class Scores(NamedTuple):
    """Log-probabilities of the same tokens under the trainer's and the engine's weights."""

    trainer_t: npt.NDArray[np.float64]
    engine_t: npt.NDArray[np.float64]

    @property
    def difference(self) -> float:
        return float(np.mean(np.abs(self.trainer_t - self.engine_t)))

    def moved_from(self, before: "Scores") -> "Moved":
        trainer, engine = (np.mean(np.abs(now - then)) for now, then in zip(self, before, strict=True))
        return Moved(float(trainer), float(engine))


class Moved(NamedTuple):
    trainer: float
    engine: float


def find_fault(now: Scores, moved_at: Scores | None, noise: Noise) -> str | None:
    """What is wrong with the engine's weights, None if nothing is. `moved_at`: the scores when the engine last moved.

    Comparing trainer and engine detects corrupt weights. One small step changes less than rounding does, so stale
    weights are detected by comparing each with its own past: the trainer moves and the engine does not.
    """
    if not now.difference <= noise.between:  # also if it is NaN
        return f"log-probabilities differ by {now.difference:.3g} on average; rounding explains at most {noise.between}"
    if moved_at is None:
        return None
    moved = now.moved_from(moved_at)
    if moved.trainer > noise.seen and moved.engine < STILL * moved.trainer:
        return f"log-probabilities moved by {moved.trainer:.3g} in the trainer and by {moved.engine:.3g} in vLLM"
    return None


def served_moved(now: Scores, moved_at: Scores | None) -> bool:
    """Whether the engine followed the trainer, so that the next comparison starts from here."""
    if moved_at is None:
        return True
    moved = now.moved_from(moved_at)
    return moved.engine >= STILL * moved.trainer


class WeightSyncCheck(TrainerCallback):
    """Compares vLLM's weights with the trainer's before the first generation at each step; a mismatch raises.

    Active from construction on. Add it before the callbacks that sample.

    Args:
        trainer: a `trl.GRPOTrainer` with `use_vllm`, colocated or served, after its construction.
        task: the training problems, whose ids are the dataset's `problem_id`; without it prompts are scored without
            gold answers.
    """

    def __init__(self, trainer: PolicyTrainer, task: Task | None = None) -> None:
        self.trainer = trainer
        self.observer = run_observer(trainer)
        self.ids = scored_sequences(trainer, task)
        if takes_images(trainer) and trainer.accelerator.is_local_main_process:
            say("offleash: vLLM's weights are checked on text only: the vision tower is not compared")
        self.differences: list[float] = []
        self._moved_at: Scores | None = None
        self._checked: tuple[int, int, bool] | None = None
        before_generate(trainer, self._check_once)
        if is_server(trainer) and trainer.accelerator.is_main_process:
            watch_server(trainer)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        # The Trainer also logs at the end of a run (train_runtime, ...), when there is nothing new.
        if self.differences and logs and "reward" in logs:
            self.observer.scalars({SERVED_DIFFERENCE.tag: max(self.differences)}, state.global_step)
            del self.differences[:-1]  # a check made for the monitor also covers the rollouts that follow

    def _check_once(self, copied: bool) -> None:
        """Per step and model, with its adapter or without; and whenever an engine in sleep mode got its weights."""
        held = (self.trainer.state.global_step, id(self.trainer.model), has_adapter_off(self.trainer.model))
        if copied or held != self._checked:
            self.check()
            self._checked = held

    def check(self) -> None:
        """Compare, and raise on every rank if any rank's engine is wrong. Collective."""
        trainer_t = self._trainer_logps()
        difference, fault = 0.0, None
        if not is_server(self.trainer) or self.trainer.accelerator.is_main_process:
            now = Scores(trainer_t, np.array(engine_logps(self.trainer, self.ids)))
            difference, fault = now.difference, find_fault(now, self._moved_at, self._rounding)
            self._moved_at = now if served_moved(now, self._moved_at) else self._moved_at
        found = gather_object([(difference, fault)])
        self.differences.append(max(difference for difference, _ in found))
        for rank, (_, fault) in enumerate(found):
            if fault is not None:
                raise EngineError(
                    f"vLLM does not serve the weights in training (step {self.trainer.state.global_step}, process "
                    f"{rank}): {fault}. The weight sync of these versions of trl and vLLM fails for this model: try "
                    "vllm_model_impl: transformers, or use_vllm: false"
                )

    def _trainer_logps(self) -> npt.NDArray[np.float64]:
        rows = [torch.tensor(ids, device=self.trainer.accelerator.device) for ids in self.ids]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        logits = token_logits(self.trainer, self.trainer.model, ids, mask)[:, :-1]
        logps = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[:, :, 0]
        return logps[mask[:, 1:].bool()].double().cpu().numpy()

    @cached_property
    def _rounding(self) -> Noise:
        args = self.trainer.args
        computed = "bfloat16" if args.bf16 else "float16" if args.fp16 else self.trainer.model.dtype
        names = [str(computed).removeprefix("torch."), engine_dtype(self.trainer)]
        return max(NOISE.get(name, NOISE["bfloat16"]) for name in names)


def scored_sequences(trainer: PolicyTrainer, task: Task | None) -> list[list[int]]:
    """For each prompt its last tokens and the first of its gold answer; no longer than a rollout, so they fit."""
    rows = trainer.train_dataset[:PROMPTS]
    # Only the text of prompts with images is compared.
    texts = [without_images(prompt) for prompt in rows["prompt"]] if takes_images(trainer) else rows["prompt"]
    prompts = tokenize_prompts(trainer, texts).ids
    problems = {problem.id: problem for problem in task.problems} if task is not None else {}
    completion_of = getattr(task, "gold_completion", lambda problem: None)
    length = min(TOKENS, trainer.args.max_completion_length - 1)
    found = []
    for i, prompt in enumerate(prompts):
        text = ""
        if problems:
            problem = problems[rows["problem_id"][i]]
            text = completion_of(problem) or problem.gold
        gold = text_tokenizer(trainer)(text=text, add_special_tokens=False)["input_ids"]
        found.append([*prompt[-TOKENS:], *gold[:length]])
    return found


def watch_server(trainer: PolicyTrainer, every: float = HEALTH_SECONDS) -> None:
    """Make pending requests to vLLM's server raise EngineError once the server is gone."""
    wrap_requests(trainer, partial(_answer, every))


def _answer(every: float, server: str, request: Callable[[], Any]) -> Any:
    answer, failed = _in_thread(request), 0
    while failed < HEALTH_CHECKS:
        try:
            return answer.result(every)
        except NotYet:
            failed = 0 if _is_healthy(server) else failed + 1
        except OSError as error:  # requests' exceptions are OSErrors
            return _give_up(_gone(server, first_line(error)))
    return _give_up(_gone(server, f"and failed its health check {HEALTH_CHECKS} times"))


def _give_up(error: EngineError) -> NoReturn:
    """Raised, if somebody can hear it: TRL updates weights by a request in a second thread, while the main thread sends
    them to the server and waits, for ever if that is gone."""
    if threading.current_thread() is threading.main_thread():
        raise error
    say(f"offleash: error: {error}", error=True)
    os._exit(1)


def _in_thread(call: Callable[[], Any]) -> Future[Any]:
    """The result of a call in a daemon thread, which does not delay the interpreter's exit."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # raised again by result()
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=10).status_code == 200
    except httpx.ReadTimeout:
        return True
    except httpx.HTTPError:
        return False


def _gone(url: str, why: str) -> EngineError:
    return EngineError(
        f"the vLLM server at {url} does not answer ({why}): restart it, then continue this run with --resume"
    )
