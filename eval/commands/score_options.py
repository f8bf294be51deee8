"""The flags of `offleash score` and the text that teaches them."""

import argparse
from pathlib import Path

DESCRIPTION = """Log-probability, perplexity and token entropy of given texts under a model, by teacher forcing: of the
completions in a pool, or of reference traces in a file. Scores of a pool are kept inside it, in
POOL/scores/NAME; the samples are not touched. The same command continues scores that are not complete;
scores made otherwise (other weights under the same name, say) are refused, naming the setting."""

EXAMPLES = """examples:
  Two pools, each under both models; compare then shows the token entropies, the four perplexities and the
  KL to the base (k = 32 is what the paper's entropy table uses; it can be raised later):
    offleash score pools/base pools/step-200 --model lab runs/lab/checkpoint-200 --k 32
    offleash compare pools/base pools/step-200

  Reference traces, one table row per file and model (the paper's Table 2: one file for what was lost, one
  for what was gained, one for what neither solves):
    offleash score --traces shrunk.jsonl expanded.jsonl --model BASE POLICY --json table2.json

  Traces that name problems of a task instead of repeating their prompts:
    offleash score --traces r1.jsonl --task math500 --model Qwen/Qwen2.5-7B-Instruct

  JSONL or parquet with these columns:
    {"prompt": "2+2?", "completion": "4"}              prompt: text or chat messages
    {"problem_id": "math500/17", "completion": "..."}  with --task; "truncated": true for a cut one

What is scored: the prompt goes through the template as in offleash sample; the completion's text is
tokenised by itself and appended, then one end token unless the completion was cut. A text can be spelled
in several ways in tokens; how many completions were drawn in another number of tokens is counted and said.
A pool drawn with stop texts gets no end token: which of the two ended a completion is not stored.

Perplexity is exp of the mean -log p per token: over a completion's tokens, over a problem's completions,
over problems, as in offleash compare. Log-probability and token entropy are at --temperature, the model's
own distribution by default, whatever the pool was sampled at. Token entropy is over the full vocabulary."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="offleash score",
        usage="offleash score POOL [POOL ...] --model MODEL [MODEL ...] [options]\n"
        "       offleash score --traces FILE [FILE ...] --model MODEL [MODEL ...] [options]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("pools", nargs="*", type=Path, metavar="POOL", help="folders of pools whose completions to score")
    _both(made.add_argument_group("under what"))
    _pools(made.add_argument_group("of a pool"))
    _traces(made.add_argument_group("of traces"))
    return made


def _both(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--model",
        required=True,
        nargs="+",
        help="hub ids, folders, checkpoints, folders of PEFT adapters, or lab: the embedded model",
    )
    group.add_argument(
        "--temperature",
        type=float,
        default=1.0,
        help="that divides the logits (default %(default)s: perplexity as usual)",
    )
    group.add_argument("--template", default="auto", help="auto, plain or a file, as in offleash sample")
    group.add_argument(
        "--template-args", default="{}", metavar="JSON", help='of the template, {"enable_thinking": false}'
    )
    group.add_argument("--end-token", metavar="TOKEN", help="that is appended: default the tokenizer's, '' for none")
    dtypes = ("auto", "float32", "bfloat16", "float16")
    group.add_argument("--dtype", choices=dtypes, default="auto", help="auto: what the model's config says")
    group.add_argument("--revision", help="branch, tag or commit of a hub model")
    group.add_argument("--tokenizer", help="hub id or folder, if not the model's own")
    group.add_argument(
        "--batch-tokens", type=int, default=16384, metavar="N", help="tokens in one forward pass (default %(default)s)"
    )


def _pools(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--k", type=int, help="only the first K draws of each problem (default: all)")
    group.add_argument("--limit", type=int, metavar="N", help="only the first N problems")
    group.add_argument("--name", help="of the scores; default: made of the model's name")
    group.add_argument("--force", action="store_true", help="score although the model's template is not the pool's")
    group.add_argument(
        "--save-every", type=float, default=10.0, metavar="SECONDS", help="between parts; default %(default)s"
    )


def _traces(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--traces", nargs="+", type=Path, metavar="FILE", help="JSONL or parquet, see below")
    group.add_argument("--task", help="finds the prompt of a problem_id; offleash tasks lists the names")
    group.add_argument("--task-args", default="{}", metavar="JSON", help="of the task")
    group.add_argument("--json", type=Path, metavar="FILE", help="every number; keys: offleash.eval.report.scores")
    group.add_argument("--markdown", type=Path, metavar="FILE", help="the table for a README or an issue")
