"""A dataset as a task: what its columns mean, rows from the hub or a file of the same schema, stable ids.

A `Benchmark` is one entry of the table in `benchmarks`, or made by `data_task` for a dataset of one's own; calling it
loads the task.
"""

import base64
import csv
import hashlib
import io
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from offleash.eval.errors import ConfigError, first_line
from offleash.eval.problem import Messages, Problem, Task
from offleash.eval.sampling import is_int

Row = Mapping[str, Any]
Pairs = list[tuple[Problem, Row]]
Field = str | Callable[[Row], str]
Kind = Literal["math", "choice", "exact", "judge", "code", "function"]
BOXED = "Reason step by step, and put your final answer within \\boxed{}."
PLAIN = ("problem", "answer")
FORMATS = (".jsonl", ".parquet", ".json", ".csv")
SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Where a benchmark is, and how its rows become problems with a verifier.

    `question` and `gold` name a column, or compute the text from the row; `columns` are those that such functions read.
    Ids are those of the column `id` after the benchmark's name, or what a function says; without it, a hash of the
    content. `keep` selects rows, `sample` is how many of them are drawn uniformly (0: all), `tests` what a program must
    pass (the fields of `code_tasks.Tests`), `function` judges completions of kind "function". Without `chat` prompts
    are plain text instead of messages.
    """

    name: str
    source: str
    split: str
    size: int
    domain: Literal["math", "non-math", ""]
    kind: Kind
    question: Field
    gold: Field
    config: str | None = None
    files: tuple[str, ...] = ()
    id: Field = ""
    columns: tuple[str, ...] = ()
    meta: tuple[str, ...] = ()
    image: str = ""
    choices: str = ""
    keep: Callable[[Row], bool] | None = None
    sample: int = 0
    instruction: str | Callable[[Row], str] = BOXED
    tests: Callable[[Row], dict[str, str]] | None = None
    function: Callable[..., Any] | None = None
    tolerance: float = 0.0
    last_number: bool = False
    chat: bool = True
    notes: str = ""

    def __call__(
        self,
        *,
        path: str | Path | None = None,
        split: str | None = None,
        limit: int | None = None,
        ids: Sequence[str] | str | None = None,
        sample: int | None = None,
        seed: int = 0,
        golds: Literal["refuse", "drop", "unchecked"] = "refuse",
        thinking: bool = False,
        workers: int | None = None,
        allow_unconfined: bool = False,
        judge_url: str = "",
        judge_model: str = "",
        judge_cache: str | Path = "judge.jsonl",
        rows: Iterable[Row] | None = None,
    ) -> Task:
        """The task, from the hub, from `path` (a file, or a folder of files named after the split) or of these `rows`.

        `ids` and `limit` choose problems; `sample` and `seed` draw some uniformly. `golds` says what to do about
        gold answers that cannot be verified. `thinking`: the chat template opens a think block itself. The rest is for
        programs (`workers`, by default one per core; `allow_unconfined`) and for judged answers (`judge_*`: an
        OpenAI-compatible server).
        """
        if golds not in ("refuse", "drop", "unchecked"):
            raise ConfigError(f"task {self.name!r}: golds must be refuse, drop or unchecked, got {golds!r}")
        where = str(path) if path is not None else f"{self.source} ({split or self.split})"
        if rows is None:
            rows = hub_rows(self, split or self.split) if path is None else local_rows(Path(path), split)
        pairs = list(self.problems_of(rows, where))
        pairs = choose(pairs, self.name, ids, limit, self.sample if sample is None else sample, seed)
        if not pairs:
            raise ConfigError(f"task {self.name!r}: {where} has no problems of it")
        run = {"workers": workers, "allow_unconfined": allow_unconfined}
        judge = (judge_url, judge_model, Path(judge_cache))
        return checked(partial(self.task_of, thinking=thinking, run=run, judge=judge), pairs, golds)

    def task_of(self, pairs: Pairs, *, thinking: bool, run: dict[str, Any], judge: tuple[str, str, Path]) -> Task:
        """The problems with the verifier of their kind. Verifiers are imported here: the table does not need them."""
        from offleash.eval.tasks.code_tasks import CodeAnswers, Tests
        from offleash.eval.tasks.function_task import FunctionAnswers
        from offleash.eval.tasks.math_tasks import NUMBER_STEPS, MathAnswers
        from offleash.eval.tasks.text_tasks import JudgedAnswers, TextAnswers, judge_of
        from offleash.eval.verify.extract import MATH_STEPS

        name, problems = self.name, [problem for problem, _ in pairs]
        if self.kind == "code":
            assert self.tests is not None, f"{name} is code without tests"
            tests = {problem.id: Tests(**self.tests(row)) for problem, row in pairs}
            return CodeAnswers(name, problems, tests, thinking=thinking, **run)
        if self.kind == "function":
            assert self.function is not None, f"{name} has no function"
            return FunctionAnswers(
                name, problems, {one.id: row["row"] for one, row in pairs}, self.function, thinking=thinking
            )
        if self.kind == "exact":
            return TextAnswers(name, problems, thinking=thinking)
        if self.kind == "judge":
            return JudgedAnswers(name, problems, judge_of(*judge), thinking=thinking)
        steps = NUMBER_STEPS if self.last_number else MATH_STEPS
        return MathAnswers(name, problems, steps=steps, thinking=thinking, tolerance=self.tolerance)

    def problems_of(self, rows: Iterable[Row], where: str) -> Iterator[tuple[Problem, Row]]:
        """Each problem with its row. Rows that `keep` excludes are left out; a missing column is an error."""
        seen: Counter[str] = Counter()
        for number, row in enumerate(rows, 1):
            plain = self.is_plain(row)
            if not plain:
                self.check_columns(row, f"row {number} of {where}")
                if self.keep is not None and not self.keep(row):
                    continue
            problem = self.problem(row, plain)
            seen[problem.id] += 1
            if seen[problem.id] > 1:
                problem = replace(problem, id=f"{problem.id}-{seen[problem.id]}")
            yield problem, row

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns a row must have."""
        named = [field for field in (self.id, self.question, self.gold, self.image, self.choices) if field]
        return tuple(dict.fromkeys([*(field for field in named if isinstance(field, str)), *self.columns]))

    def check_columns(self, row: Row, where: str) -> None:
        if missing := [column for column in self.needed if column not in row]:
            raise ConfigError(
                f"task {self.name!r}: {where} has no column {', '.join(map(repr, missing))}; it has "
                f"{', '.join(map(str, row)) or 'none'}. The schema is that of {self.source}: {', '.join(self.needed)}"
            )

    def is_plain(self, row: Row) -> bool:
        """A file with the columns `problem`, `answer` and optionally `id` instead of the published ones."""
        usable = self.kind in ("math", "judge") and all(row.get(column) is not None for column in PLAIN)
        return usable and not all(column in row for column in self.needed)

    def problem(self, row: Row, plain: bool) -> Problem:
        question, gold = (text_of(field, row) for field in (PLAIN if plain else (self.question, self.gold)))
        problem_id = self.id_of(row, plain) or content_id(self.name, question, gold)
        return Problem(problem_id, self.prompt(question, row), gold, self.meta_of(row, question))

    def id_of(self, row: Row, plain: bool) -> str:
        """As the row states it; "" if it does not."""
        if callable(self.id):
            return self.id(row)
        column, prefix = ("id", "") if plain else (self.id, f"{self.name}/")
        return f"{prefix}{row[column]}" if column and row.get(column) is not None else ""

    def prompt(self, question: str, row: Row) -> str | Messages:
        instruction = self.instruction if isinstance(self.instruction, str) else self.instruction(row)
        text = f"{question}\n\n{instruction}" if instruction else question
        if not self.chat:
            return text
        content: Any = text
        if self.image and (picture := row.get(self.image)) is not None:
            content = [{"type": "image_url", "image_url": {"url": data_url(picture)}}, {"type": "text", "text": text}]
        return [{"role": "user", "content": content}]

    def meta_of(self, row: Row, question: str) -> dict[str, Any]:
        kept = {column: jsonable(row[column]) for column in self.meta if is_known(row.get(column))}
        listed = list(row.get(self.choices) or []) if self.choices else []
        choices = {"choices": [str(choice) for choice in listed]} if listed else {}
        return {"benchmark": self.name, "domain": self.domain, "question": question, **choices, **kept}


def checked(make: Callable[[Pairs], Task], pairs: Pairs, golds: str) -> Task:
    """The task of these problems after its golds were checked. Programs are not run here, only by `bad_golds`."""
    from offleash.eval.verify.health import bad_golds

    task = make(pairs)
    if golds == "unchecked":
        return task
    quick = getattr(task, "quick_faults", None)
    faults = quick() if quick is not None else bad_golds(task)
    if not faults:
        return task
    listed = "; ".join(f"{problem_id}: {reason}" for problem_id, reason in faults[:SHOWN])
    more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
    said = f"{len(faults)} of {len(pairs)} gold answers of task {task.name!r} cannot be verified: {listed}{more}"
    if golds == "refuse":
        raise ConfigError(f"{said}. Correct them, or leave those problems out with golds='drop'")
    warnings.warn(f"{said}. They are left out.", RuntimeWarning, stacklevel=3)
    bad = {problem_id for problem_id, _ in faults}
    if not (kept := [pair for pair in pairs if pair[0].id not in bad]):
        raise ConfigError(f"{said}: no problem is left")
    return make(kept)


def choose(
    pairs: Pairs, name: str, ids: Sequence[str] | str | None, limit: int | None, sample: int = 0, seed: int = 0
) -> Pairs:
    """The first `limit` of the named problems, or of a uniform sample, in the dataset's order.

    A sample takes the smallest hashes of (seed, id): it does not depend on the order of the rows.
    """
    if limit is not None and (not is_int(limit) or limit < 1):
        raise ConfigError(f"task {name!r}: limit must be an integer, at least 1, got {limit!r}")
    if ids is not None:
        wanted = {one.strip() for one in ids.split(",")} if isinstance(ids, str) else set(map(str, ids))
        if unknown := sorted(wanted - {problem.id for problem, _ in pairs}):
            example = f"; ids look like {pairs[0][0].id!r}" if pairs else ""
            raise ConfigError(f"task {name!r} has no problem {', '.join(unknown[:SHOWN])}{example}")
        pairs = [pair for pair in pairs if pair[0].id in wanted]
    elif 0 < sample < len(pairs):
        order = sorted(pairs, key=lambda pair: hashlib.sha256(f"{seed}/{pair[0].id}".encode()).digest())
        drawn = {problem.id for problem, _ in order[:sample]}
        pairs = [pair for pair in pairs if pair[0].id in drawn]
    return pairs[:limit]


def text_of(field: Field, row: Row) -> str:
    value = row[field] if isinstance(field, str) else field(row)
    return "" if value is None else str(value)


def content_id(name: str, *parts: str) -> str:
    """An id for problems without one: the same content has the same id, whatever its position."""
    return f"{name}/{hashlib.sha256(chr(0).join(parts).encode(errors='replace')).hexdigest()[:12]}"


def is_known(value: Any) -> bool:
    return value is not None and value == value  # not NaN, which pandas writes for missing values


def jsonable(value: Any) -> Any:
    """A value that JSON can store: dates and the like become text."""
    return value if isinstance(value, str | int | float | bool) else json.loads(json.dumps(value, default=str))


def data_url(picture: Any) -> str:
    """An image as a data URL: from bytes, {"bytes": ...} as datasets stores it, a PIL image, or a data URL itself."""
    if isinstance(picture, str) and picture.startswith("data:"):
        return picture
    data: Any = picture.get("bytes") if isinstance(picture, Mapping) else picture
    if hasattr(data, "save"):  # a PIL image
        sink = io.BytesIO()
        data.save(sink, format="PNG")
        data = sink.getvalue()
    if not isinstance(data, bytes):
        raise ConfigError(f"an image must be bytes, a PIL image or a data URL, got {type(picture).__name__}")
    kinds = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}
    kind = next((name for start, name in kinds.items() if data.startswith(start)), "png")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


# Rows


def hub_rows(benchmark: Benchmark, split: str) -> Iterator[Row]:
    """Rows from the hub; images stay encoded."""
    import datasets

    with hub_errors(benchmark, f", split {split!r}"):
        if benchmark.files:
            files = [f"hf://datasets/{benchmark.source}/{name}" for name in benchmark.files]
            data = datasets.load_dataset("json", data_files=files, split="train")
        else:
            data = datasets.load_dataset(benchmark.source, benchmark.config, split=split)
    for column, feature in data.features.items():
        if isinstance(feature, datasets.Image):
            data = data.cast_column(column, datasets.Image(decode=False))
    return iter(data)


def hub_split(benchmark: Benchmark) -> str:
    """The only split of a dataset on the hub."""
    import datasets

    with hub_errors(benchmark):
        names = datasets.get_dataset_split_names(benchmark.source, benchmark.config)
    if len(names) != 1:
        raise ConfigError(f"{benchmark.source} has the splits {', '.join(names)}: give one of them")
    return str(names[0])


@contextmanager
def hub_errors(benchmark: Benchmark, what: str = "") -> Iterator[None]:
    import datasets
    import httpx

    try:
        yield
    except (OSError, ValueError, RuntimeError, httpx.HTTPError, datasets.exceptions.DatasetsError) as error:
        raise ConfigError(
            f"task {benchmark.name!r}: cannot load {benchmark.source}{what} ({first_line(error)}). "
            "Without access to the hub, give a file of the same schema: path=FILE"
        ) from error


def local_rows(path: Path, split: str | None) -> Iterator[Row]:
    """Rows of a file, or of the files of a folder whose name starts with the split's."""
    for file in local_files(path, split):
        yield from read_rows(file)


def local_files(path: Path, split: str | None) -> list[Path]:
    """The file itself, or the files of a folder whose name starts with the split's; hidden ones are left out."""
    if path.is_dir():
        inside = ((file, file.relative_to(path).parts) for file in path.rglob(f"{split or ''}*"))
        found = [file for file, parts in inside if file.suffix in FORMATS and not any(p.startswith(".") for p in parts)]
        if not found:
            raise ConfigError(f"{path} has no {split or ''}*{' or '.join(FORMATS)} file")
        return sorted(found)
    if split is not None:
        raise ConfigError(f"{path} is one file, which has no split {split!r}: leave split out, or give its folder")
    return [path]


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSONL, JSON, parquet or CSV file, one by one. Raises ConfigError naming the bad line."""
    import pyarrow as pa  # not at the top: the names of the benchmarks are known without it
    import pyarrow.parquet as pq

    if path.suffix not in FORMATS:
        raise ConfigError(f"{path}: a file of problems must end in {', '.join(FORMATS)}")
    try:
        if path.suffix == ".parquet":
            with pq.ParquetFile(path) as table:
                for batch in table.iter_batches(256):
                    yield from batch.to_pylist()
        elif path.suffix == ".csv":
            with path.open(encoding="utf-8-sig", newline="") as file:
                yield from csv_rows(csv.DictReader(file, strict=True), path)
        elif path.suffix == ".json":
            yield from as_rows(json_value(path.read_text(encoding="utf-8-sig"), str(path)), str(path))
        else:
            with path.open(encoding="utf-8-sig") as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        where = f"{path}, line {number}"
                        yield from as_rows([json_value(line, where)], where)
    except (OSError, UnicodeDecodeError, pa.ArrowException, csv.Error) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or first_line(error)}") from error


def csv_rows(reader: "csv.DictReader[str]", path: Path) -> Iterator[dict[str, Any]]:
    names = list(reader.fieldnames or [])
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{path}: the column {twice[0]!r} is duplicated")
    for row in reader:
        if None in row:
            raise ConfigError(f"{path}, line {reader.line_num}: more cells than the header has columns ({len(names)})")
        yield row


def json_value(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {first_line(error)}") from error


def as_rows(values: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(values, list):
        raise ConfigError(f"{where}: expected a list of JSON objects, got {type(values).__name__}")
    if wrong := [number for number, value in enumerate(values, 1) if not isinstance(value, dict)]:
        row = f", row {wrong[0]}" if len(values) > 1 else ""
        raise ConfigError(f"{where}{row}: every row must be a JSON object")
    return values
