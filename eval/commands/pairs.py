"""List the model pairs of "The Invisible Leash", or print the commands that reproduce one.

examples:
    offleash pairs                   every pair with its models and what the paper found
    offleash pairs prorl-1.5b-v1     what to run: both arms, and the comparison beside the paper's numbers; for its
                                     entropy study 32 more draws each, all of them made and scored
    offleash pairs prorl-1.5b-v1 --k 256 --tasks math500 minerva      a smaller measurement
"""

import argparse
import json
import shlex
from collections.abc import Iterator

from offleash.eval.comparison.paper import SAMPLES_K, ModelPair, find_pair, pair_names
from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.flags import command_parser
from offleash.eval.tasks import TASKS
from offleash.eval.tasks.loading import Benchmark

MANY = 256
"""Draws beyond which stopping early pays off."""
JUDGE = {"judge_url": "http://localhost:8000/v1", "judge_model": "YOUR-JUDGE"}


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    if options.name is None:
        say("\n".join(_listed(find_pair(name)) for name in pair_names()))
    else:
        say("\n\n".join(commands(find_pair(options.name), options.pools, options.tasks, options.k)))
    return 0


def _parser() -> argparse.ArgumentParser:
    made = command_parser("pairs", __doc__)
    made.add_argument("name", nargs="?", help="a pair, or a YAML file with your own")
    made.add_argument("--pools", default="pools", metavar="DIR", help="folder for the samples (default: %(default)s)")
    made.add_argument("--tasks", nargs="+", metavar="TASK", help="only these of its tasks")
    made.add_argument("--k", type=int, help="draws per problem (default: the paper's)")
    return made


def commands(
    pair: ModelPair, pools: str = "pools", tasks: list[str] | None = None, k: int | None = None
) -> Iterator[str]:
    """Shell commands: `offleash sample` for both arms, one call per budget, then `offleash compare`.

    The paper's entropy study is of 32 draws, which a pool that stops early does not have: it gets separate pools
    where those of the support are larger, and `offleash score`, because vLLM gives no token entropy.
    """
    if k is not None and k < 1:
        raise ConfigError(f"--k must be at least 1, got {k}")
    if unknown := set(tasks or []) - set(pair.tasks):
        raise ConfigError(f"{pair.name} has no task {', '.join(sorted(unknown))}; it has {', '.join(pair.tasks)}")
    chosen = {name: draws if k is None else k for name, draws in pair.tasks.items() if tasks is None or name in tasks}
    folder = f"{pools}/{pair.name}"
    studied = {name: SAMPLES_K for name, draws in chosen.items() if name in pair.paper.samples and draws >= SAMPLES_K}
    apart = any(chosen[name] > SAMPLES_K for name in studied)
    suffix = f"-{SAMPLES_K}" if apart else ""
    for arm in ("base", "policy"):
        if any(map(_pictured, chosen)):
            yield f"vllm serve {_model(pair, arm)} --port 8000   # in another terminal, until this arm is drawn"
        for group, draws in _groups(chosen):
            yield _sample(pair, arm, group, draws, f"{folder}/{arm}")
        for group, draws in _groups(studied if apart else {}):
            yield _sample(pair, arm, group, draws, f"{folder}/{arm}{suffix}")
        if studied:
            yield _score(pair, arm, list(studied), f"{folder}/{arm}{suffix}")
    for ending in dict.fromkeys(("", suffix)):
        arms = f"{folder}/base{ending} {folder}/policy{ending}"
        yield f"offleash compare {arms} --pair {pair.name} --html {folder}/report{ending}.html"


def _groups(tasks: dict[str, int]) -> Iterator[tuple[list[str], int]]:
    """Tasks with the same budget together; a judged task alone, because it needs other arguments."""
    for draws in dict.fromkeys(tasks.values()):
        names = [name for name, other in tasks.items() if other == draws]
        if plain := [name for name in names if not _judged(name)]:
            yield plain, draws
        yield from (([name], draws) for name in names if _judged(name))


def _sample(pair: ModelPair, arm: str, tasks: list[str], draws: int, folder: str) -> str:
    """Stopping at the fifth success gives the same support at 1 to 5 hits as all draws would, for far fewer of them."""
    arguments = {**pair.task_args, **(JUDGE if _judged(tasks[0]) else {})}
    pool = folder if len(tasks) > 1 else f"{folder}/{tasks[0]}"
    lines = [
        *(_served(pair, arm) if _pictured(tasks[0]) else _loaded(pair, arm)),
        f"--task {' '.join(tasks)}",
        *([f"--task-args {shlex.quote(json.dumps(arguments))}"] if arguments else []),
        f"--pool {pool} --k {draws}{' --plan until --successes 5' if draws > MANY else ''}",
        f"--temperature {pair.temperature} --top-p {pair.top_p} --max-new-tokens {pair.max_new_tokens}",
    ]
    return " \\\n    ".join(lines)


def _loaded(pair: ModelPair, arm: str) -> list[str]:
    """Both arms get the base's tokenizer and chat template: what differs is the weights."""
    engine = f" --engine-args {shlex.quote(json.dumps(dict(pair.engine_args)))}" if pair.engine_args else ""
    model, *tokenizer = _weights(pair, arm)
    return [f"offleash sample {model}", *tokenizer, f"--engine vllm{engine}"]


def _weights(pair: ModelPair, arm: str) -> list[str]:
    revision = pair.base_revision if arm == "base" else pair.policy_revision
    model = f"--model {_model(pair, arm)}{f' --revision {revision}' if revision else ''}"
    return [model, *([] if arm == "base" else [f"--tokenizer {pair.base}"])]


def _score(pair: ModelPair, arm: str, tasks: list[str], folder: str) -> str:
    pools = [f"{folder}/{task}" for task in tasks]
    return " \\\n    ".join(["offleash score", *pools, *_weights(pair, arm), f"--k {SAMPLES_K}"])


def _served(pair: ModelPair, arm: str) -> list[str]:
    """Images are passed on only as messages to a server."""
    return ["offleash sample --model http://localhost:8000/v1 --engine openai", f"--served-model {_model(pair, arm)}"]


def _model(pair: ModelPair, arm: str) -> str:
    return pair.base if arm == "base" else pair.policy


def _pictured(task: str) -> bool:
    entry = TASKS.get(task)
    return isinstance(entry, Benchmark) and bool(entry.image)


def _judged(task: str) -> bool:
    entry = TASKS.get(task)
    return isinstance(entry, Benchmark) and entry.kind == "judge"


def _listed(pair: ModelPair) -> str:
    found = ", ".join(
        f"{domain} P {d.preserved} E {d.expanded} S {d.shrunk} O {d.out} (SRR {d.srr:.3f}, NSCR {d.nscr:+.3f})"
        for domain, d in pair.paper.domains.items()
    )
    return f"{pair.name:22} {pair.base} -> {pair.policy}\n{'':22} {found or 'entropies only'}"
