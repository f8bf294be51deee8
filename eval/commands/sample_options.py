"""The flags of `offleash sample` and its help text."""

import argparse

from offleash.eval.commands.data_flags import add_own_benchmark
from offleash.eval.flags import add_flags, command_parser
from offleash.eval.pool.settings import SampleSettings

SUCCESSES = 5

DESCRIPTION = """Sample k completions of every problem of a task from a model, verify them, and store them as a pool:
a folder that `offleash compare` reads. The same command resumes an incomplete pool and samples exactly
what is missing; with a larger --k or more problems the pool grows. If only the verifier changed, what is
stored is judged again. A pool that was sampled with other settings is refused, naming the setting.

Both pools of a comparison need the same template, stop texts and sampling: `offleash compare` checks.
Ctrl-C, a crash or kill -9 lose at most the last --save-every seconds. From Python: offleash.eval.sample_pool."""

EXAMPLES = """examples:
  The embedded model, nothing to download (a minute on two cores):
    offleash sample --model lab --task countdown --task-args '{"split": "probe", "n": 200}' \\
        --pool pools/base --k 256

  A checkpoint of a run, the same way, and what changed:
    offleash sample --model runs/lab/checkpoint-200 --task countdown \\
        --task-args '{"split": "probe", "n": 200}' --pool pools/step-200 --k 256
    offleash compare pools/base pools/step-200

  A hub model on a GPU, k = 1024, as the paper samples:
    offleash sample --model Qwen/Qwen2.5-7B-Instruct --task math500 --pool pools/qwen --engine vllm \\
        --k 1024 --temperature 0.6 --top-p 0.95 --max-new-tokens 3072

  Stop a problem at its fifth success, at the latest after 8192 samples. Which problems are solved, at 1
  to 5 hits, is the same as with all 8192, for far fewer samples of problems that the model can solve;
  which of several correct answers are reached needs the fixed plan:
    offleash sample ... --k 8192 --plan until --successes 5

  Any OpenAI-compatible server (vllm serve, SGLang, llama.cpp). With --tokenizer the prompts are sent
  as token ids, the same for every server; without it the server applies its own chat template:
    offleash sample --model http://localhost:8000/v1 --tokenizer Qwen/Qwen2.5-7B-Instruct \\
        --task gsm8k --pool pools/served --k 64 --max-new-tokens 1024

  The same on a Ray cluster, an engine on every GPU; workers may die and come back:
    offleash sample ... --engine vllm --ray auto

  On four machines, each its share of the problems, and then one pool (this is the second of them):
    offleash sample ... --shard 2/4 --pool pools/part-2
    offleash merge pools/all pools/part-1 pools/part-2 pools/part-3 pools/part-4

  A benchmark of your own: JSONL, JSON, CSV or parquet, a folder of them, or a dataset on the hub. The pool
  and the reports carry its name, here bench. Other arguments of the task (judge_url, thinking, ...) go
  into --task-args:
    offleash sample --model lab --data bench.jsonl --question problem --gold answer --verifier math \\
        --pool pools/bench --k 64

  What it would take, at the speed that an earlier run printed; nothing is loaded or written:
    offleash sample ... --k 1024 --dry-run --tokens-per-second 8000

  The flags in a file; those on the command line override it:
    offleash sample --config sample.yaml --pool pools/other --seed 1

  Several tasks, one pool each in a subfolder:
    offleash sample --model lab --task countdown my_module:MyTask --pool pools/base --k 64"""


def parser() -> argparse.ArgumentParser:
    made = command_parser("sample", f"{DESCRIPTION}\n{EXAMPLES}")
    _what(made.add_argument_group("what to sample"))
    add_own_benchmark(made.add_argument_group("a benchmark of your own (short for the task `data` and its arguments)"))
    add_how(made)
    _instead(made.add_argument_group("instead of sampling"))
    return made


def add_how(made: argparse.ArgumentParser) -> None:
    """The flags of everything that samples: how, and with which engine."""
    _how(made.add_argument_group("sampling parameters (all recorded, none taken from the model)"))
    _with(made.add_argument_group("engine"))


def _what(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--model",
        required=True,
        help="hub id, folder, checkpoint, folder of a PEFT adapter, URL of a server, or lab: the embedded model",
    )
    group.add_argument(
        "--task", nargs="+", help="names (offleash tasks lists them) or my_module:MyTask; or give --data"
    )
    group.add_argument(
        "--task-args",
        action="append",
        default=[],
        metavar="JSON",
        help="arguments of the task; once for all tasks or once for each",
    )
    group.add_argument("--pool", required=True, metavar="DIR", help="folder of the pool, created or resumed")
    add_budget(group)


def add_budget(group: "argparse._ArgumentGroup") -> None:
    """How many samples of which problems."""
    group.add_argument("--k", type=int, required=True, help="samples per problem; with --plan until, the maximum")
    group.add_argument(
        "--plan", choices=("fixed", "until"), default="fixed", help="until: stop a problem at --successes"
    )
    group.add_argument(
        "--successes", type=int, help=f"correct completions at which --plan until stops (default {SUCCESSES})"
    )
    add_flags(group, SampleSettings, "limit", "ids", "shard", "seed")


def _how(group: "argparse._ArgumentGroup") -> None:
    shown = "default %(default)s"
    group.add_argument("--temperature", type=float, default=1.0, help=shown)
    group.add_argument("--top-p", type=float, default=1.0, help=f"{shown}: off")
    group.add_argument("--top-k", type=int, default=0, help=f"{shown}: off")
    group.add_argument("--min-p", type=float, default=0.0, help=f"{shown}: off")
    group.add_argument("--repetition-penalty", type=float, default=1.0, help=f"{shown}: off")
    group.add_argument("--max-new-tokens", type=int, help="default: 4096, or what the model's context leaves")
    group.add_argument(
        "--stop", nargs="+", default=[], metavar="TEXT", help="texts that end a completion and are cut from it"
    )
    add_flags(group, SampleSettings, "end_tokens", "template", "template_args")


def _with(group: "argparse._ArgumentGroup") -> None:
    add_flags(group, SampleSettings, "engine", "engine_args", "ray", "ray_workers", "dtype", "revision", "tokenizer")
    add_flags(group, SampleSettings, "served_model", "save_every", "max_verifier_failures")


def _instead(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--dry-run", action="store_true", help="show what exists, what is missing and its cost; load and write nothing"
    )
    group.add_argument(
        "--tokens-per-second", type=float, metavar="N", help="with --dry-run: also show the hours at this speed"
    )
