"""One's own benchmark by name: a file, a folder or a dataset of the hub, its columns, and how answers are verified.

`load_task("data", path="bench.jsonl", question="problem", gold="answer", verifier="math")`; `offleash sample --data` is
the same. The task is called after the file, and so are its pools and reports.
"""

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from offleash.eval.errors import ConfigError
from offleash.eval.problem import Task
from offleash.eval.registry import check_name, find_function, fit_arguments
from offleash.eval.tasks.benchmarks import COMPLETE, OPTION, SHORT, STDIN
from offleash.eval.tasks.data_rows import META, Columns, Label, read_problems
from offleash.eval.tasks.function_task import PARAMETERS
from offleash.eval.tasks.loading import (
    BOXED,
    FORMATS,
    Benchmark,
    Kind,
    Row,
    hub_rows,
    hub_split,
    local_files,
    read_rows,
)

VERIFIERS: tuple[Kind, ...] = ("math", "choice", "exact", "code", "judge")
NOT_CHOSEN = ("self", "path", "split", "rows")
FUNCTION = "Write the Python function `{entry}`. Give the whole function in one ```python block."
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


def data_task(
    *,
    path: str | Path,
    question: str,
    verifier: str,
    gold: str = "",
    name: str | None = None,
    id: str | None = None,
    config: str | None = None,
    split: str | None = None,
    instruction: str | None = None,
    choices: str | Sequence[str] = (),
    tests: str | Sequence[str] = (),
    tolerance: float = 0.0,
    last_number: bool = False,
    chat: bool = True,
    **chosen: Any,
) -> Task:
    """Problems of one's own.

    Args:
        path: a JSONL, JSON, CSV or parquet file, a folder of them, or the id of a dataset on the hub.
        question: the column of the question.
        verifier: math, choice, exact, code, judge, or a function of your own, `my_module:my_function`.
        gold: the column of the reference answer; programs need none.
        name: of the benchmark; default: the file's name without its ending, or the last part of the hub's id.
        id: the column of the ids; default: `id` if there is one, else (or with "") a hash of question and gold.
        config, split: of a dataset on the hub; in a folder, the files whose name starts with `split`.
        instruction: what follows the question in the prompt; each verifier has a default, "" is none.
        choices: for `choice`: the column of the list of options, or one column for each option; without it, the
            question states the options and the gold is a letter.
        tests: for `code`: the column of the tests, and if they do not show it, that of the function's name.
        tolerance: for `math`: how far a number may be from the gold, relative to it.
        last_number: for `math`: without a box, the last number of a completion is its answer.
        chat: prompts are chat messages; False: plain text, to train a model without a chat template.
        **chosen: as for every benchmark: limit, ids, sample, seed, golds, thinking, workers, allow_unconfined,
            judge_url, judge_model, judge_cache.
    """
    texts = {"question": question, "gold": gold, "verifier": verifier, "name": name, "id": id, "config": config}
    check_types(path, texts | {"split": split, "instruction": instruction}, tolerance, last_number, chat)
    columns = Columns(question, gold, id or "", as_columns("choices", choices), as_columns("tests", tests))
    kind = kind_of(verifier)
    check_fitting(kind, columns, bool(tolerance), last_number, chosen)
    chosen = fit_arguments("task", "data", Benchmark.__call__, chosen)
    title = default_name(path) if name is None else name
    if not NAME.fullmatch(title):
        raise ConfigError(f"a benchmark's name has letters, digits and . _ + - only, got {title!r}: give it a name")
    benchmark = Benchmark(
        name=title, source=str(path), config=config, split=split or "", size=0, domain="", kind=kind,
        question="question", gold="gold", id=lambda row: str(row["id"]), choices="choices" if columns.choices else "",
        meta=META, instruction=default_instruction(kind) if instruction is None else instruction,
        tests=lambda row: dict(row["tests"]), tolerance=tolerance, last_number=last_number, chat=chat,
        function=find_function("verifier", verifier, PARAMETERS) if kind == "function" else None,
    )  # fmt: skip
    located = located_rows(benchmark, split)
    if id is None and any("id" in row for _, row in located):
        columns = columns._replace(id="id")
    rows = read_problems(located, columns, kind, str(path))
    task = benchmark(path=path, rows=rows, **chosen)
    if kind in ("code", "function"):  # what else their verdicts depend on, which the problems do not show
        task.version += f"-{digest(row['tests' if kind == 'code' else 'row'] for row in rows)}"
    return task


def check_types(path: Any, texts: Mapping[str, Any], tolerance: Any, *flags: Any) -> None:
    """Raise ConfigError for values of a wrong type, such as JSON and YAML may hold."""
    if not isinstance(path, str | Path) or not str(path).strip():
        raise ConfigError(f"task 'data': path must be a file, a folder or a dataset of the hub, got {path!r}")
    for key, value in texts.items():
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"task 'data': {key} must be text, got {value!r}")
    if not texts["question"]:
        raise ConfigError("task 'data': question must name a column")
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
        raise ConfigError(f"task 'data': tolerance must be a number from 0 to below 1, got {tolerance!r}")
    if wrong := [flag for flag in flags if not isinstance(flag, bool)]:
        raise ConfigError(f"task 'data': last_number and chat must be true or false, got {wrong[0]!r}")


def as_columns(key: str, names: str | Sequence[str]) -> tuple[str, ...]:
    listed = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, Sequence) else (names,)
    if not all(isinstance(name, str) and name for name in listed):
        raise ConfigError(f"task 'data': {key} must name a column or a list of them, got {names!r}")
    return listed


def kind_of(verifier: str) -> Kind:
    check_name("verifier", verifier, VERIFIERS, example="my_module:my_function")
    return next((kind for kind in VERIFIERS if kind == verifier), "function")


def check_fitting(kind: Kind, columns: Columns, tolerant: bool, last_number: bool, chosen: Mapping[str, Any]) -> None:
    """Raise ConfigError for arguments that the verifier lacks, or has no use for."""
    common = [name for name in inspect.signature(Benchmark.__call__).parameters if name not in NOT_CHOSEN]
    if unknown := sorted(set(chosen) - set(common)):
        own = [name for name in inspect.signature(data_task).parameters if name != "chosen"]
        raise ConfigError(
            f"task 'data' has no argument {unknown[0]!r}; its arguments are: {', '.join([*own, *common])}"
        )
    uses = {
        "choices": (bool(columns.choices), "choice"),
        "tests": (bool(columns.tests), "code"),
        "tolerance": (tolerant, "math"),
        "last_number": (last_number, "math"),
    }
    if idle := [(key, user) for key, (is_given, user) in uses.items() if is_given and user != kind]:
        raise ConfigError(f"task 'data': {idle[0][0]} is for the verifier {idle[0][1]}, not for {kind}: leave it out")
    if not columns.gold and kind != "code":
        raise ConfigError(f"task 'data': the verifier {kind} needs gold, the column of the reference answer")
    if kind == "code" and not 1 <= len(columns.tests) <= 2:
        raise ConfigError("task 'data': the verifier code needs tests: their column, and perhaps the entry point's")
    if kind == "judge" and not chosen.get("judge_url"):
        raise ConfigError(
            "task 'data': the verifier judge needs judge_url (an OpenAI-compatible server, .../v1) and judge_model"
        )


def default_name(path: str | Path) -> str:
    """After the file, the folder or the last part of the hub's id."""
    local = Path(path)
    stem = local.stem if local.suffix in FORMATS else (local.resolve() if local.exists() else local).name
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", stem).strip("-.")


def default_instruction(kind: Kind) -> str | Callable[[Row], str]:
    texts = {"math": BOXED, "exact": BOXED, "choice": OPTION, "judge": SHORT, "function": ""}
    return program_instruction if kind == "code" else texts[kind]


def program_instruction(row: Row) -> str:
    tests = row["tests"]
    if tests.get("prefix"):
        return COMPLETE
    return FUNCTION.format(entry=tests["entry"]) if tests["entry"] else STDIN


def located_rows(benchmark: Benchmark, split: str | None) -> list[tuple[Label, Row]]:
    """Every row with its number, and its file if there are several."""
    path = Path(benchmark.source)
    if not is_local(path):
        rows = hub_rows(benchmark, split or hub_split(benchmark))
        return [(str(number), row) for number, row in enumerate(rows, 1)]
    if benchmark.config is not None:
        raise ConfigError(f"{path} is here and has no config {benchmark.config!r}: leave config out")
    files = local_files(path, split)
    return [
        (f"{number}" if len(files) == 1 else f"{file.relative_to(path)}:{number}", row)
        for file in files
        for number, row in enumerate(read_rows(file), 1)
    ]


def is_local(path: Path) -> bool:
    """Whether this is, or can only be meant as, a file or a folder: an id of the hub is NAME or OWNER/NAME."""
    named_so = path.suffix in FORMATS or path.is_absolute() or len(path.parts) > 2 or path.parts[:1] == ("..",)
    return named_so or path.exists()


def digest(values: Iterable[Any]) -> str:
    text = json.dumps(list(values), sort_keys=True, default=str)
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]
