"""List the tasks by name, or show some problems of one.

examples:
    offleash tasks                                       every name with size, verifier, domain, source and notes
    offleash tasks gym                                   the tasks of reasoning-gym
    offleash tasks math500 --path math500.jsonl          three problems of a local file
    offleash tasks humaneval --check                     verify every gold answer and list those that fail
    offleash tasks my_module:MyTask --check              call every method of your own task, then the same
    offleash tasks data --path bench.jsonl --question problem --gold answer --verifier math
                                                         a benchmark of your own
"""

import argparse
import json
import textwrap
from typing import Any

from offleash.eval.commands.data_flags import add_data_flags, data_arguments, merged
from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.flags import command_parser, json_option
from offleash.eval.problem import Part, Problem, chat_text
from offleash.eval.tasks import TASKS, checks_golds, load_task
from offleash.eval.tasks.loading import Benchmark

_WIDTH = 118
_OWN = {
    "change": ("any", "exact", "math", "generated", "a chain of running totals, then coins; all answers are listed"),
    "colouring": ("any", "exact", "non-math", "generated", "colour a small graph; all answers are listed"),
    "countdown": ("any", "exact", "math", "generated", "the task of the lab; all correct answers are listed"),
    "data": ("any", "any", "any", "your own", "a file, folder or hub dataset; its arguments name the columns"),
    "gym": ("any", "gym", "non-math", "reasoning-gym", "gym/NAME or gym/NAME/hard; `offleash tasks gym` lists them"),
}
"""Size, verifier, domain, source and notes of tasks that are not benchmarks."""


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    for value, low, flag in ((options.limit, 1, "--limit"), (options.show, 0, "--show")):
        if value is not None and value < low:
            raise ConfigError(f"{flag} must be at least {low}, got {value}")
    if options.task is None:
        say(_table([_row_of(name) for name in TASKS]))
        return 0
    if options.task == "gym":
        say(_gym_table())
        return 0
    task = load_task(options.task, **_arguments(options))
    if options.check:
        return _check(task)
    shown = min(options.show, len(task.problems))
    say(f"{task.name}: {len(task.problems)} problems, version {task.version}; the first {shown}:")
    for problem in task.problems[:shown]:
        say("\n" + _show(problem))
    return 0


def _parser() -> argparse.ArgumentParser:
    made = command_parser("tasks", __doc__)
    words = "name of a task, or a dotted path to your own (my_module:MyTask)"
    made.add_argument("task", nargs="?", metavar="name", help=words)
    made.add_argument("--path", help="local file or folder with the published schema, instead of the hub")
    made.add_argument("--split", help="another split than the default")
    made.add_argument("--limit", type=int, help="only the first problems")
    made.add_argument("--ids", help="only these problems, separated by commas")
    made.add_argument("--task-args", default="{}", metavar="JSON", help="other arguments of the task")
    made.add_argument("--show", type=int, default=3, help="how many problems to print")
    made.add_argument(
        "--check", action="store_true", help="call the task, verify every gold answer; status 1 if one fails"
    )
    add_data_flags(made.add_argument_group("for the task data: a benchmark of your own"), "split")
    return made


def _arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The given flags; with --check, loading does not check gold answers itself."""
    given = {name: getattr(options, name) for name in ("path", "limit", "ids")}
    chosen = {name: value for name, value in given.items() if value is not None} | data_arguments(options)
    unchecked = {"golds": "unchecked"} if options.check and checks_golds(options.task) else {}
    return merged(chosen | unchecked, json_option(options.task_args, "--task-args"))


def _row_of(name: str) -> tuple[str, ...]:
    entry = TASKS[name]
    if isinstance(entry, Benchmark):
        size = f"{entry.sample} of {entry.size}" if entry.sample else str(entry.size)
        where = f"{entry.source} ({entry.config})" if entry.config else entry.source
        return name, size, entry.kind, entry.domain, where, entry.notes
    return (name, *_OWN.get(name, ("", "", "", "", "")))


def _table(rows: list[tuple[str, ...]]) -> str:
    """Aligned columns; notes below their row."""
    head = ("name", "problems", "verifier", "domain", "source")
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = ["  ".join(word.ljust(width) for word, width in zip(head, widths, strict=True)).rstrip()]
    for row in rows:
        lines.append("  ".join(word.ljust(width) for word, width in zip(row[:5], widths, strict=True)).rstrip())
        if row[5]:
            lines.append(textwrap.fill(row[5], _WIDTH, initial_indent="    ", subsequent_indent="    "))
    return "\n".join(lines)


def _gym_table() -> str:
    from offleash.eval.tasks.gym.levels import HARD, PAPER
    from offleash.eval.tasks.gym.tasks import GUESSABLE, UNSUPPORTED

    try:
        from reasoning_gym.factory import DATASETS
    except ModuleNotFoundError as error:
        raise ConfigError("this list needs reasoning-gym: pip install 'offleash[gym]'") from error
    lines = []
    for name in sorted([*DATASETS, *PAPER]):
        levels = "easy, hard" if name in HARD else "easy"
        guess = f"guessable: about {GUESSABLE[name]} possible answers" if name in GUESSABLE else ""
        note = f"not supported: {UNSUPPORTED[name]}" if name in UNSUPPORTED else guess
        lines.append(f"gym/{name:28} {levels:12} {note}".rstrip())
    return "\n".join(lines)


def _show(problem: Problem) -> str:
    text = chat_text(problem.prompt, between="\n", between_parts="\n", other=_image_size)
    meta = {key: value for key, value in problem.meta.items() if key != "question"}
    gold = textwrap.shorten(problem.gold, 300, placeholder=" ...") or "(verified by its tests)"
    described = json.dumps(meta, ensure_ascii=False, default=str)[:300]
    return f"{problem.id}\n{textwrap.indent(text[:2000], '  | ')}\n  gold: {gold}\n  meta: {described}"


def _image_size(part: Part) -> str:
    return f"[image, {len(json.dumps(part)) * 3 // 4 // 1024 + 1} KiB]"


def _check(task: Any) -> int:
    from offleash.eval.verify.dry_call import check_task
    from offleash.eval.verify.health import bad_golds, states_golds

    if tried := check_task(task):
        say(f"{task.name}: verify and correct_answers work on {tried} of {len(task.problems)} problems")
    if not states_golds(task):
        say(f"{task.name}: it has no gold_completion(problem), so no gold answer could be verified")
        return 0
    say(f"offleash: verifying the gold answers of {len(task.problems):,} problems", error=True)
    faults = bad_golds(task)
    for problem_id, reason in faults:
        say(f"{problem_id}: {reason}")
    say(f"{task.name}: {len(task.problems) - len(faults)} of {len(task.problems)} gold answers verify")
    return 1 if faults else 0
