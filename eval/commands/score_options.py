"""The flags of `offleash score` and its help text."""

import argparse
from pathlib import Path

from offleash.eval.flags import add_flags, command_parser
from offleash.eval.scoring.settings import ScoreSettings
from offleash.eval.storage import path_at

DESCRIPTION = """Log-probability, perplexity and token entropy of given texts under a model, by teacher forcing: of the
completions in a pool, or of reference traces in a file. Scores of a pool are stored inside it, in
POOL/scores/NAME; its samples are not modified. The same command resumes incomplete scores. Scores that
were made with other settings (such as other weights under the same name) are an error that names them.

What is scored: the prompt is formatted by the template as in offleash sample; the completion's text is
tokenized by itself and appended, followed by one end token unless the completion was truncated. A text can
be tokenized in several ways; the command reports how many completions were sampled with a different number
of tokens. A pool sampled with stop strings gets no end token: which of the two ended a completion is not
stored.

Perplexity is exp of the mean -log p per token: over a completion's tokens, over a problem's completions,
over problems, as in offleash compare. Log-probability and token entropy are at --temperature, by default
the model's own distribution, whatever temperature the pool was sampled at. Token entropy is over the full
vocabulary."""

EXAMPLES = """examples:
  Two pools, each under both models; compare then shows the token entropies, the four perplexities and the
  KL to the base (the paper's entropy table uses k = 32; k can be raised later):
    offleash score pools/base pools/step-200 --model lab runs/lab/checkpoint-200 --k 32
    offleash compare pools/base pools/step-200

  Reference traces, one table row per file and model (the paper's Table 2: one file for what was lost, one
  for what was gained, one for what neither model solves):
    offleash score --traces shrunk.jsonl expanded.jsonl --model BASE POLICY --json table2.json

  Traces that refer to problems of a task instead of repeating their prompts:
    offleash score --traces r1.jsonl --task math500 --model Qwen/Qwen2.5-7B-Instruct

  JSONL or parquet with these columns:
    {"prompt": "2+2?", "completion": "4"}              prompt: text or chat messages
    {"problem_id": "math500/17", "completion": "..."}  with --task; "truncated": true if it was cut off"""


def parser() -> argparse.ArgumentParser:
    made = command_parser(
        "score",
        f"{DESCRIPTION}\n{EXAMPLES}",
        usage="offleash score POOL [POOL ...] --model MODEL [MODEL ...] [options]\n"
        "       offleash score --traces FILE [FILE ...] --model MODEL [MODEL ...] [options]",
    )
    made.add_argument("pools", nargs="*", type=path_at, metavar="POOL", help="folders of the pools to score")
    _both(made.add_argument_group("model and settings"))
    _pools(made.add_argument_group("pools"))
    _traces(made.add_argument_group("traces"))
    return made


def _both(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--model",
        required=True,
        nargs="+",
        help="hub ids, folders, checkpoints, folders with PEFT adapters, or lab (the embedded model)",
    )
    add_flags(group, ScoreSettings, "temperature", "template", "template_args", "end_token")
    add_flags(group, ScoreSettings, "dtype", "revision", "tokenizer", "batch_tokens")


def _pools(group: "argparse._ArgumentGroup") -> None:
    add_flags(group, ScoreSettings, "k", "limit", "name", "save_every")
    group.add_argument("--force", action="store_true", help="score even if the model's template is not the pool's")


def _traces(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--traces", nargs="+", type=Path, metavar="FILE", help="JSONL or parquet, see below")
    group.add_argument("--task", help="task with the problems that problem_id refers to (see offleash tasks)")
    group.add_argument("--task-args", default="{}", metavar="JSON", help="arguments of the task")
    group.add_argument("--json", type=Path, metavar="FILE", help="all numbers; keys: offleash.eval.report.scores")
    group.add_argument("--markdown", type=Path, metavar="FILE", help="the table as Markdown")
