"""The hooks of explorers in TRL's GRPOTrainer: rewards, advantages and loss pass through them.

Only private methods of TRL that have to be overridden are named here; the rest is in `callbacks/policy/trl_seam.py`.
Without explorers the trajectory is that of stock TRL to within rounding: columns of padding are not computed, and
rollouts of similar length share a micro-batch, over which TRL averages some of what it logs. Read against trl 1.16:
`_compute_loss` calls `_get_per_token_logps_and_entropies` before it reads `inputs["advantages"]`, which may be (B, T).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer

from offleash.callbacks.policy.frozen_base import frozen_base
from offleash.callbacks.policy.trl_seam import (
    checkpoint_folder,
    draw_as_one,
    in_step,
    nanstd,
    scoring,
    take_over_sync,
    text_tokenizer,
    token_logps,
    train_metrics,
    without_padding,
)
from offleash.eval.errors import ConfigError
from offleash.eval.problem import Task, Verdict
from offleash.train.explorer_callback import ExplorerCallback
from offleash.train.explorers.base import Explorer, Rollouts, RolloutVerifier, Tokens, all_correct, normalized
from offleash.train.explorers.checks import (
    check_chain,
    check_rewards_used,
    check_shape,
    check_solved_alike,
    overrides,
)
from offleash.train.explorers.metrics import (
    ADVANTAGE_ABS,
    ADVANTAGE_MEAN,
    EXTRA_LOSS,
    REWARD_SHAPED,
    REWARD_WITH_TRACES,
    TOKEN_ADVANTAGE_ABS,
)
from offleash.train.preflight.images import MODEL_INPUTS
from offleash.train.reward_errors import RewardErrors
from offleash.train.rewards import VerifierReward

BASE_LOGPS = "base_per_token_logps"
"""In a batch: the base's log-probabilities where TRL's `ref_per_token_logps` are missing or not the base's."""

LOSS = {"training_step", "compute_loss", "_compute_loss", "get_off_policy_mask", "get_gamma_weights"}
"""The methods of TRL that make the loss of a micro-batch, and how it is learned from."""

SCORED = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
"""What a forward pass over text takes of a batch."""


class Exploring(GRPOTrainer):
    """The hooks of explorers, over the methods of TRL's trainer or of any subclass that comes next in the order of
    classes. It has no constructor: `begin_exploring` prepares a trainer that exists."""

    verifier: RolloutVerifier
    explorers: Sequence[Explorer] = ()
    latest_off_policy: Sequence[bool] = ()
    """Which of the latest rollouts of all ranks are off-policy traces; empty if no explorer adds any."""
    _off_policy: list[bool]
    _local_ids: list[str]
    _verdicts: list[Verdict] | None = None
    _rewards_nf: torch.Tensor | None = None
    """The latest rewards of all ranks by every reward function, as TRL has them."""
    _completed: list[tuple[int, Sequence[int] | None]]
    """Of this rank's latest rollouts: the number of tokens, and which of them the policy drew (None: all)."""
    _loss_inputs: dict[str, Any] | None = None
    _tokens: Tokens | None = None

    def begin_exploring(self, verifier: RolloutVerifier, explorers: Sequence[Explorer]) -> None:
        take_over_sync(self)
        draw_as_one(self)
        check_chain(explorers)
        check_rewards_used(explorers, self.reward_func_names, self.reward_weights.tolist(), self.args)
        self.verifier, self.explorers = verifier, list(explorers)
        for explorer in self.explorers:
            explorer.attach(self)
        self.add_callback(ExplorerCallback(self))

    # Rollouts

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.explorers or not self.model.training:
            plain: dict[str, Any] = super()._generate_and_score_completions(self._shown(inputs))
            return plain
        collector = next((e for e in self.explorers if overrides(e, "collect")), self.explorers[0])
        return collector.collect(inputs, self._explored)

    def _shown(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Dataset rows as TRL expects them."""
        return inputs

    def problem_ids(self, rows: Iterable[Mapping[str, Any]]) -> list[str]:
        """The problem of each dataset row."""
        return [self.verifier.problem_id(row) for row in rows]

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids: Any) -> torch.Tensor:
        with RewardErrors(self) as errors:
            rewards_nf: torch.Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids)
        errors.share(lambda: self._judge(rewards_nf, inputs, completions, completion_ids))
        return rewards_nf

    def _judge(self, rewards_nf: torch.Tensor, rows: Any, completions: Any, completion_ids: Any) -> None:
        if self.model.training:
            self._rewards_nf, first = rewards_nf.cpu(), self.accelerator.process_index * len(rows)
            if self.explorers:
                own_bf = self._rewards_nf[first : first + len(rows)]
                self.verifier.judge(rows, completions, completion_ids, own_bf)
            self._verdicts = list(self.verifier.latest) or None

    def latest_verdicts(self, task: Task) -> list[Verdict] | None:
        """The task's verdicts on this rank's latest training rollouts; None if they were not judged by this task."""
        is_judge = isinstance(self.verifier, VerifierReward) and self.verifier.task is task
        return self._verdicts if is_judge else None

    def _explored(self, inputs: list[dict[str, Any]]) -> tuple[dict[str, Any], Rollouts]:
        """TRL's batch with the explorers' advantages, and the rollouts of all ranks."""
        self._local_ids, self._off_policy = self.problem_ids(inputs), [False] * len(inputs)
        output: dict[str, Any] = super()._generate_and_score_completions(self._shown(inputs))
        if self._any_needs("base_logps") and not frozen_base(self).is_reference():
            with scoring(self), frozen_base(self).scored() as base:
                output[BASE_LOGPS] = self._logps(base, output)
        rollouts = self._rollouts(output)
        if self._any_overrides("traces"):
            self._log_on_policy_reward(rollouts)
        stock_pg = self.accelerator.gather(output["advantages"]).cpu().view_as(rollouts.rewards_pg)
        advantages_pg = self._advantages(rollouts, stock_pg)
        change_pg = advantages_pg - stock_pg
        train_metrics(self)[ADVANTAGE_MEAN.key].append(change_pg.mean().item())
        train_metrics(self)[ADVANTAGE_ABS.key].append(change_pg.abs().mean().item())
        rows = len(inputs)
        local = advantages_pg.flatten()[self.accelerator.process_index * rows :][:rows]
        output["advantages"] = local.to(output["advantages"])
        if self._any_overrides("traces"):
            output["off_policy"] = torch.tensor(self._off_policy, device=self.accelerator.device)
        return output, rollouts

    def _advantages(self, rollouts: Rollouts, stock_pg: torch.Tensor) -> torch.Tensor:
        """Where the verifier failed, TRL's advantage stays: 0, unless another reward function gave it one."""
        rewards_pg, advantages_pg = rollouts.rewards_pg, stock_pg
        shaped_pg = self._shaped_rewards(rollouts)
        if not _same(shaped_pg, rewards_pg):
            sums_pg = self._reward_sums(rewards_pg)
            if not _same(sums_pg, rewards_pg):
                shaped_pg = sums_pg + (shaped_pg - rewards_pg) * self._verifier_weight()
            fresh_pg = normalized(shaped_pg, self.scale_rewards)
            advantages_pg = torch.where(all_correct(rewards_pg), advantages_pg, fresh_pg)
        split = False
        for explorer in self.explorers:
            before_pg = advantages_pg
            advantages_pg = explorer.advantages(_copy(rollouts), advantages_pg.clone())
            check_shape(explorer, "advantages", advantages_pg, rewards_pg.shape)
            split |= explorer.splits_solved
            if not split:
                check_solved_alike(explorer, rewards_pg, before_pg, advantages_pg)
        return torch.where(rewards_pg.isnan(), stock_pg, advantages_pg)

    def _reward_sums(self, rewards_pg: torch.Tensor) -> torch.Tensor:
        """(P, G) what TRL's advantages come from: the weighted sum of all reward functions, NaN where none applies."""
        return rewards_pg if self._rewards_nf is None else self._weighted(self._rewards_nf).view_as(rewards_pg)

    def _weighted(self, rewards_nf: torch.Tensor) -> torch.Tensor:
        sums_n = (rewards_nf * self.reward_weights.cpu()).nansum(1)
        return torch.where(rewards_nf.isnan().all(1), torch.nan, sums_n)

    def _verifier_weight(self) -> float:
        at = self.verifier.reward_index
        return 1.0 if at is None else float(self.reward_weights[at])

    def _shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        """The true rewards plus what each explorer changes."""
        shaped_pg = rollouts.rewards_pg
        for explorer in self.explorers:
            if overrides(explorer, "rewards"):
                own_pg = explorer.rewards(_copy(rollouts))
                check_shape(explorer, "rewards", own_pg, shaped_pg.shape)
                is_first = shaped_pg is rollouts.rewards_pg
                shaped_pg = own_pg if is_first else shaped_pg + (own_pg - rollouts.rewards_pg)
        if shaped_pg is not rollouts.rewards_pg:
            train_metrics(self)[REWARD_SHAPED.key].append(shaped_pg.nanmean().item())
        return shaped_pg

    def _log_on_policy_reward(self, rollouts: Rollouts) -> None:
        """TRL has logged rewards of off-policy traces as the policy's: correct that, and log the mix under our tag."""
        metrics = train_metrics(self)
        metrics[REWARD_WITH_TRACES.key].append(metrics["reward"][-1])
        self.latest_off_policy = rollouts.off_policy_pg.flatten().tolist()
        if rollouts.off_policy_pg.any():
            assert self._rewards_nf is not None
            own_nf = torch.where(rollouts.off_policy_pg.view(-1, 1), torch.nan, self._rewards_nf)
            own_pg = self._weighted(own_nf).view_as(rollouts.rewards_pg)
            own = {"reward": own_pg.nanmean().item(), "reward_std": nanstd(own_pg).item()}
            for name, own_n in zip(self.reward_func_names, own_nf.unbind(1), strict=True):
                own |= {f"rewards/{name}/mean": own_n.nanmean().item(), f"rewards/{name}/std": nanstd(own_n).item()}
            if self.scale_rewards != "batch":
                own["frac_reward_zero_std"] = (nanstd(own_pg, dim=1) < 1e-6).float().mean().item()
            for key, value in own.items():
                metrics[key][-1] = value

    def _rollouts(self, output: dict[str, Any]) -> Rollouts:
        generations = self.num_generations
        rows = list(zip(self._local_ids, self.verifier.latest, self._off_policy, strict=True))
        ids, verdicts, off_policy = zip(*gather_object(rows), strict=True)
        rewards = [float("nan") if v.failed else float(v.correct) for v in verdicts]
        answers = [verdict.answer for verdict in verdicts]
        starts = range(0, len(ids), generations)
        mask_bt, whole = _sampled(output), self._untruncated(output)
        policy_bt, base_bt = self._policy_logps(output, whole), self._base_logps(output)
        drawn_bt = _sampled(whole)
        sums_pg = None if policy_bt is None else self._per_rollout(_row_sums(policy_bt, drawn_bt))
        return Rollouts(
            step=self.state.global_step,
            problem_ids=tuple(ids[start] for start in starts),
            rewards_pg=torch.tensor(rewards).view(-1, generations),
            answers_pg=tuple(tuple(answers[start : start + generations]) for start in starts),
            logps_pg=None if sums_pg is None else sums_pg / self._per_rollout(drawn_bt.sum(1)),
            off_policy_pg=torch.tensor(off_policy).view(-1, generations),
            sequence_logps_pg=sums_pg,
            base_logps_pg=None if base_bt is None else self._per_rollout(_row_sums(base_bt, mask_bt)),
            completion_ids_pg=self._completion_ids(output) if self._any_needs("completions") else None,
        )

    def _untruncated(self, output: dict[str, Any]) -> dict[str, Any]:
        """The batch with the masks that it had before `mask_truncated_completions`."""
        if not self.mask_truncated_completions:
            return output
        shape, device = output["completion_mask"].shape, output["completion_mask"].device
        masks_bt = {"completion_mask": torch.zeros(shape, dtype=torch.long)}
        if "tool_mask" in output:
            masks_bt["tool_mask"] = torch.ones(shape, dtype=torch.long)
        for row, (length, drawn) in enumerate(self._completed):
            masks_bt["completion_mask"][row, :length] = 1
            if "tool_mask" in output and drawn is not None:
                masks_bt["tool_mask"][row, :length] = torch.tensor(drawn)
        return {**output, **{key: mask_bt.to(device) for key, mask_bt in masks_bt.items()}}

    def _policy_logps(self, output: dict[str, Any], whole: dict[str, Any]) -> torch.Tensor | None:
        """(B, T) of the policy that drew the rollouts, if an explorer reads them, by the trainer's forward pass.

        TRL has none of completions that it masks as truncated: they are scored here, and would look certain otherwise.
        vLLM's own are not used: they differ by rounding, and by what top_p, top_k and min_p leave out.
        """
        if not self._any_needs("logps"):
            return None
        known_bt: torch.Tensor | None = output.get("old_per_token_logps")
        cut_b = (whole["completion_mask"] > output["completion_mask"]).any(1)
        most = int(self.accelerator.gather(cut_b.sum()).max())  # forward passes are collective under ZeRO-3 and FSDP
        if known_bt is not None and most == 0:
            return known_bt
        with scoring(self):
            if known_bt is None or any(key in output for key in MODEL_INPUTS):
                return self._logps(self.model, whole)
            rows_b = cut_b.int().argsort(descending=True, stable=True)[:most]
            cut_bt = self._logps(self.model, {key: whole[key][rows_b] for key in SCORED})
        scored_bt = known_bt.clone()
        scored_bt[rows_b[: cut_b.sum()]] = cut_bt[: cut_b.sum()]
        return scored_bt

    def _base_logps(self, batch: dict[str, Any]) -> torch.Tensor | None:
        """(B, T) of the frozen base, if it is the KL reference or an explorer has asked for it."""
        known = "ref_per_token_logps" if frozen_base(self).is_reference() else BASE_LOGPS
        logps_bt: torch.Tensor | None = batch.get(known)
        return logps_bt

    def _completion_ids(self, output: dict[str, Any]) -> tuple[tuple[tuple[int, ...], ...], ...]:
        rows = zip(output["completion_ids"].cpu(), output["completion_mask"].bool().cpu(), strict=True)
        ids = gather_object([tuple(row[mask].tolist()) for row, mask in rows])
        return tuple(tuple(ids[i : i + self.num_generations]) for i in range(0, len(ids), self.num_generations))

    def _per_rollout(self, values_b: torch.Tensor) -> torch.Tensor:
        """(P, G) on the CPU, from all ranks."""
        return self.accelerator.gather(values_b).cpu().view(-1, self.num_generations)

    def _logps(self, model: Any, output: dict[str, Any]) -> torch.Tensor:
        input_ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
        mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
        return token_logps(
            self,
            model,
            input_ids,
            mask,
            output["completion_ids"].size(1),
            batch_size=self.args.per_device_train_batch_size,
            **{key: output[key] for key in MODEL_INPUTS if key in output},
        )[0]

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        generated = super()._generate(prompts)
        if not self.model.training or not self.explorers:
            return generated
        prompt_ids, completion_ids, tool_mask, completions, logprobs, *rest = generated
        if self._any_overrides("traces"):
            self._put_traces(completion_ids, completions, logprobs)
        drawn = [None] * len(completion_ids) if tool_mask is None else tool_mask
        self._completed = [(len(ids), mask) for ids, mask in zip(completion_ids, drawn, strict=True)]
        return prompt_ids, completion_ids, tool_mask, completions, logprobs, *rest

    def _put_traces(self, completion_ids: list[Any], completions: list[Any], logprobs: list[Any] | None) -> None:
        """Replace, in place, the last rollout of each group that an explorer has a trace for."""
        rows, size = len(completion_ids), self.num_generations
        first = self.accelerator.process_index * rows
        last = [i for i in range(rows) if (first + i) % size == size - 1]
        for explorer in self.explorers:
            traces = explorer.traces([self._local_ids[i] for i in last])
            if len(traces) != len(last):
                raise ConfigError(
                    f"explorer {type(explorer).__name__}: traces must return a trace or None for each of {len(last)} "
                    f"problems, got {len(traces)}"
                )
            for i, ids in zip(last, traces, strict=True):
                if ids is not None:
                    completion_ids[i], self._off_policy[i] = ids, True
                    text = text_tokenizer(self).decode(ids, skip_special_tokens=True)
                    is_text = isinstance(completions[i], str)
                    completions[i] = text if is_text else [{**completions[i][0], "content": text}]
                    if logprobs is not None:
                        logprobs[i] = [float("nan")] * len(ids)

    # Loss

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        prepare = partial(super()._prepare_inputs, generation_batch)
        return prepare() if self._pools_micro_batches() else in_step(self, prepare)

    def _pools_micro_batches(self) -> bool:
        """Whether what a rollout teaches may depend on those it shares a micro-batch with, here or on other ranks."""
        own = [kind for kind in type(self).__mro__ if kind is not Exploring and not issubclass(GRPOTrainer, kind)]
        if self.top_entropy_quantile < 1 or any(not LOSS.isdisjoint(vars(kind)) for kind in own):
            return True
        in_loss = [e for e in self.explorers if overrides(e, "token_advantages") or overrides(e, "extra_loss")]
        return not all(explorer.rows_apart for explorer in in_loss)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        if not self.model.training or not self._any_overrides("token_advantages", "extra_loss"):
            return super()._compute_loss(model, inputs)
        # A copy: the buffered rollouts serve several updates, and their advantages must not change.
        self._loss_inputs, self._tokens = dict(inputs), None
        try:
            loss: torch.Tensor = super()._compute_loss(model, self._loss_inputs)
            assert self._tokens is not None
            extras = [(e, e.extra_loss(self._tokens, model)) for e in self.explorers]
        finally:
            self._loss_inputs = self._tokens = None
        total = torch.zeros_like(loss)
        for explorer, extra in extras:
            if extra is not None:
                check_shape(explorer, "extra_loss", extra, torch.Size())
                total = total + extra
        if self._any_overrides("extra_loss"):
            # TRL averages logged values over micro-batches; their losses add up.
            logged = self.accelerator.gather(total.detach()).mean() * self.current_gradient_accumulation_steps
            train_metrics(self)[EXTRA_LOSS.key].append(logged.item())
        return loss + total

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        result = without_padding(self, super()._get_per_token_logps_and_entropies, model, *args, **kwargs)
        if self._loss_inputs is not None and self._tokens is None:
            self._tokens = self._token_batch(self._loss_inputs, result[0], result[1])
            self._shape_token_advantages(self._tokens)
            self._loss_inputs["advantages"] = self._tokens.advantages_bt
        return result

    def _shape_token_advantages(self, tokens: Tokens) -> None:
        stock_bt = tokens.advantages_bt
        for explorer in self.explorers:
            shaped_bt = explorer.token_advantages(tokens)
            check_shape(explorer, "token_advantages", shaped_bt, stock_bt.shape)
            tokens.advantages_bt = shaped_bt
        if self._any_overrides("token_advantages"):
            mask_bt = tokens.mask_bt.bool()
            changes = (tokens.advantages_bt - stock_bt).detach()[mask_bt].abs().float()
            local = torch.stack([changes.sum(), mask_bt.sum().float()])
            total, count = self.accelerator.gather(local).view(-1, 2).sum(0).tolist()
            train_metrics(self)[TOKEN_ADVANTAGE_ABS.key].append(total / max(count, 1))

    def _token_batch(self, inputs: dict[str, Any], logps: torch.Tensor, entropies: torch.Tensor) -> Tokens:
        mask = _sampled(inputs)
        advantages = inputs["advantages"]
        advantages_bt = advantages[:, None].expand_as(logps) if advantages.dim() == 1 else advantages
        old = inputs.get("old_per_token_logps")
        return Tokens(
            step=self.state.global_step,
            advantages_bt=advantages_bt,
            logps_bt=logps,
            old_logps_bt=logps.detach() if old is None else old,
            entropies_bt=entropies,
            mask_bt=mask,
            off_policy_b=inputs.get("off_policy", torch.zeros(len(mask), dtype=torch.bool, device=mask.device)),
            token_mean=lambda loss_bt: self._token_mean(loss_bt, mask, inputs),
            gather=self._gather_all,
            base_logps_bt=self._base_logps(inputs),
        )

    def _token_mean(self, loss_bt: torch.Tensor, mask_bt: torch.Tensor, inputs: dict[str, Any]) -> torch.Tensor:
        """Average as `_compute_loss` does for each `loss_type`."""
        accumulated = self.current_gradient_accumulation_steps
        masked_bt = loss_bt * mask_bt
        if self.loss_type in ("grpo", "sapo"):
            return (masked_bt.sum(1) / mask_bt.sum(1).clamp(min=1)).mean() / accumulated
        if self.loss_type == "bnpo":
            return masked_bt.sum() / mask_bt.sum().clamp(min=1) / accumulated
        if self.loss_type == "dr_grpo":
            return masked_bt.sum() / (len(mask_bt) * self.max_completion_length) / accumulated
        if self.loss_type == "luspo":
            return masked_bt.sum(1).mean() / accumulated
        tokens = inputs["num_items_in_batch"].clamp(min=1) / self.accelerator.num_processes
        return masked_bt.sum() / (tokens * accumulated / self.args.steps_per_generation)

    def _gather_all(self, values: torch.Tensor) -> torch.Tensor:
        if self.accelerator.num_processes == 1:
            return values
        padded = self.accelerator.pad_across_processes(values, pad_index=float("nan"))
        gathered: torch.Tensor = self.accelerator.gather(padded)
        return gathered[~gathered.isnan()]

    def _any_overrides(self, *hooks: str) -> bool:
        return any(overrides(explorer, hook) for explorer in self.explorers for hook in hooks)

    def _any_needs(self, what: str) -> bool:
        return any(getattr(explorer, f"needs_{what}") for explorer in self.explorers)

    # Checkpoints: explorers save first, because the Trainer's state, written last, marks a checkpoint as complete

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = checkpoint_folder(self, trial)
        if self.accelerator.is_main_process:
            folder.mkdir(parents=True, exist_ok=True)
        self.accelerator.wait_for_everyone()
        for explorer in self.explorers:
            explorer.save(folder)
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        for explorer in self.explorers if checkpoint is not None else ():
            try:
                explorer.load(Path(str(checkpoint)))
            except FileNotFoundError as error:
                raise ConfigError(
                    f"{checkpoint} has no state of the explorer {type(explorer).__name__}, so it cannot be added "
                    "to this run: leave it out, or choose another --output_dir"
                ) from error


def _copy(rollouts: Rollouts) -> Rollouts:
    """For one hook, which may change rewards in place."""
    return replace(rollouts, rewards_pg=rollouts.rewards_pg.clone())


def _sampled(batch: dict[str, Any]) -> torch.Tensor:
    """(B, T) 1 for tokens that the policy drew, 0 for padding and for what tools said."""
    mask_bt: torch.Tensor = batch["completion_mask"]
    return mask_bt * batch["tool_mask"] if "tool_mask" in batch else mask_bt


def _row_sums(logps_bt: torch.Tensor, mask_bt: torch.Tensor) -> torch.Tensor:
    """(B,) NaN for a row without tokens: with `mask_truncated_completions` TRL masks whole completions."""
    sums_b = torch.where(mask_bt.bool(), logps_bt, 0.0).sum(1)
    return torch.where(mask_bt.sum(1) > 0, sums_b, torch.nan)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """NaN in the same places, and equal elsewhere."""
    return torch.equal(a.nan_to_num(-1.0), b.nan_to_num(-1.0))
