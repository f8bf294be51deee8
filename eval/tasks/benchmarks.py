"""The benchmarks of "The Invisible Leash" (arXiv 2507.14843) and two small ones, one entry each: the table.

To add one, add an entry: `load_task` and `offleash tasks` read this table. Sizes are those of the published split.
"""

import json
import re
from collections.abc import Callable

from offleash.eval.tasks.loading import BOXED, Benchmark, Row

LIVEBENCH = "2024-11-25"
SEVERAL = f"{BOXED} If there are several answers, give all of them in one box, separated by commas."
SHORT = "Give a short answer, and put it within \\boxed{}. If you do not know, say so."
OPTION = "Reason step by step, and put your final answer (the letter of the option, or the value) within \\boxed{}."
STDIN = (
    "Write a Python program that reads the input from standard input and prints the answer. Give the whole program in "
    "one ```python block."
)
STARTER = (
    "Complete this starter code in Python, keeping its names. Give the whole program in one ```python block.\n\n"
    "```python\n{code}\n```"
)
COMPLETE = "Complete this Python function. Give the whole function in one ```python block."
POWER = re.compile(r"10\s*+\^\s*+\{?\s*+(-?\d+)\s*+\}?\s*+\$?")
LETTERS = "ABCDEFGHIJ"


def gsm8k_gold(row: Row) -> str:
    return str(row["answer"]).rsplit("####", 1)[-1].strip().replace(",", "")


def olympiad_question(row: Row) -> str:
    context = str(row.get("context") or "").strip()
    return f"{context}\n{row['question']}" if context else str(row["question"])


def olympiad_gold(row: Row) -> str:
    return ", ".join(str(answer).strip().strip("$").rstrip(".") for answer in row["final_answer"])


def scibench_scale(row: Row) -> tuple[str, str]:
    """(power of ten, unit): SciBench writes 2.0 x 10^8 J as 2.0 with the unit "$10^8$ J"."""
    unit = str(row["unit"] or "").strip()
    match = POWER.search(unit)
    power, rest = (match[1], unit[match.end() :]) if match else ("", unit)
    return power, rest.replace("$", "").strip()


def scibench_gold(row: Row) -> str:
    number, (power, _) = str(row["answer_number"]).strip().replace(",", "").replace("−", "-"), scibench_scale(row)
    return f"{number}e{power}" if power else number


def scibench_instruction(row: Row) -> str:
    unit = scibench_scale(row)[1]
    return f"Give the answer as a number{f' in the unit ${unit}$' if unit else ''}. {BOXED}"


def released(*tasks: str) -> Callable[[Row], bool]:
    """Whether a LiveBench question is of one of these tasks, and of the release: out by then, not yet taken back."""

    def keep(row: Row) -> bool:
        out, removed = str(row["livebench_release_date"])[:10], str(row.get("livebench_removal_date") or "")[:10]
        return row["task"] in tasks and out <= LIVEBENCH and (not removed or removed > LIVEBENCH)

    return keep


def no_gold(row: Row) -> str:
    """Programs are judged by their tests alone."""
    return ""


def first_turn(row: Row) -> str:
    return str(row["turns"][0])


def livebench_tests(row: Row) -> dict[str, str]:
    original = row["original_json"]
    known = json.loads(original) if isinstance(original, str) else original
    return {**cases_of(row, known["metadata"]), "prefix": row.get("partial_solution") or ""}


def cases_of(row: Row, metadata: str) -> dict[str, str]:
    entry = json.loads(metadata or "{}").get("func_name") or ""
    return {"entry": entry, "public": row["public_test_cases"] or "", "private": row["private_test_cases"] or ""}


def livecodebench_tests(row: Row) -> dict[str, str]:
    return cases_of(row, row["metadata"])


def livecodebench_instruction(row: Row) -> str:
    return STARTER.replace("{code}", row["starter_code"]) if row["starter_code"] else STDIN


def held_between(first: str, last: str) -> Callable[[Row], bool]:
    """Whether a problem's contest took place between two days, both included."""
    return lambda row: first <= str(row["contest_date"])[:10] <= last


def humaneval_tests(row: Row) -> dict[str, str]:
    return {"entry": row["entry_point"], "code": row["test"], "prefix": row["prompt"]}


def humaneval_gold(row: Row) -> str:
    return f"{row['prompt']}{row['canonical_solution']}"


def mathvista_gold(row: Row) -> str:
    """The letter of the option; free answers as they are."""
    choices = list(row["choices"] or [])
    return LETTERS[choices.index(row["answer"])] if row["answer"] in choices else str(row["answer"])


def mathvision_question(row: Row) -> str:
    text = re.sub(r"(?<!\s)\s*<image\d+>", "", str(row["question"])).strip()
    options = [f"({letter}) {option}" for letter, option in zip(LETTERS, row["options"] or [], strict=False)]
    return "\n".join([text, *options])


ENTRIES = (
    Benchmark(
        name="math500", source="HuggingFaceH4/MATH-500", split="test", size=500, domain="math", kind="math",
        question="problem", gold="answer", id="unique_id", meta=("subject", "level"),
    ),
    Benchmark(
        name="minerva", source="math-ai/minervamath", split="test", size=272, domain="math", kind="math",
        question="question", gold="answer",
        notes="physics and chemistry too; no tolerance: a rounding other than the gold's is wrong",
    ),
    Benchmark(
        name="olympiadbench", source="Hothan/OlympiadBench", config="OE_TO_maths_en_COMP", split="train", size=674,
        domain="math", kind="math", question=olympiad_question, gold=olympiad_gold, id="id",
        columns=("question", "final_answer"), meta=("subfield", "answer_type", "is_multiple_answer", "unit"),
        instruction=SEVERAL, notes="English, text only; the paper counts 675",
    ),
    Benchmark(
        name="aime2024", source="HuggingFaceH4/aime_2024", split="train", size=30, domain="math", kind="math",
        question="problem", gold="answer", id="id", notes="1000 answers are possible: guessable at large k",
    ),
    Benchmark(
        name="aime2025", source="math-ai/aime25", split="test", size=30, domain="math", kind="math",
        question="problem", gold="answer", id="id", notes="1000 answers are possible: guessable at large k",
    ),
    Benchmark(
        name="amc2023", source="math-ai/amc23", split="test", size=40, domain="math", kind="math",
        question="question", gold="answer", id="id", notes="the value is asked for, not the letter",
    ),
    Benchmark(
        name="gsm8k", source="openai/gsm8k", config="main", split="test", size=1319, domain="math", kind="math",
        question="question", gold=gsm8k_gold, columns=("answer",), last_number=True,
        notes="not in the paper; without a box the last number counts",
    ),
    Benchmark(
        name="mathvista", source="AI4Math/MathVista", split="testmini", size=1000, domain="math", kind="choice",
        question="query", gold=mathvista_gold, id="pid", columns=("answer",), image="decoded_image",
        choices="choices", meta=("precision", "unit", "question_type", "answer_type"), instruction=OPTION,
        notes="images; about half have 2 to 8 options: guessable",
    ),
    Benchmark(
        name="mathvision", source="MathLLMs/MathVision", split="testmini", size=304, domain="math", kind="choice",
        question=mathvision_question, gold="answer", id="id", columns=("question",), image="decoded_image",
        choices="options", meta=("level", "subject"), instruction=OPTION,
        notes="images; about half have 5 options: guessable",
    ),
    Benchmark(
        name="simpleqa", source="basicv8vc/SimpleQA", split="test", size=4326, domain="non-math", kind="judge",
        question="problem", gold="answer", sample=433, instruction=SHORT,
        notes="a tenth, 433, drawn from a seed as in the paper (sample=0: all); needs judge_url and judge_model",
    ),
    Benchmark(
        name="livebench-reasoning", source="livebench/reasoning", split="test", size=100, domain="non-math",
        kind="exact", question=first_turn, gold="ground_truth", id="question_id",
        columns=("turns", "task", "livebench_release_date"), meta=("task",),
        keep=released("web_of_lies_v2", "spatial"), instruction="",
        notes=f"{LIVEBENCH}; 8 answers are possible to web_of_lies_v2, few to spatial: guessable",
    ),
    Benchmark(
        name="livebench-language", source="livebench/language", split="test", size=50, domain="non-math", kind="exact",
        question=first_turn, gold="ground_truth", id="question_id", columns=("turns", "task", "livebench_release_date"),
        meta=("task",), keep=released("typos"), instruction="", notes=f"{LIVEBENCH}; typos only",
    ),
    Benchmark(
        name="livebench-coding", source="livebench/coding", split="test", size=128, domain="non-math", kind="code",
        question=first_turn, gold=no_gold, id="question_id",
        columns=("turns", "task", "livebench_release_date", "public_test_cases", "private_test_cases", "original_json"),
        meta=("task", "question_title"), keep=released("LCB_generation", "coding_completion"), instruction="",
        tests=livebench_tests, notes=f"{LIVEBENCH}; programs run in a sandbox",
    ),
    *(
        Benchmark(
            name=f"livecodebench-{version}", source="livecodebench/code_generation_lite", split="test", size=size,
            files=tuple(f"test{number}.jsonl" for number in files), domain="non-math", kind="code",
            question="question_content", gold=no_gold, id="question_id",
            columns=("starter_code", "contest_date", "public_test_cases", "private_test_cases", "metadata"),
            meta=("question_title", "platform", "difficulty", "contest_date"), keep=held_between(first, last),
            instruction=livecodebench_instruction, tests=livecodebench_tests,
            notes=f"contests of {first} to {last}: the paper's {size}; programs run in a sandbox",
        )
        for version, size, files, first, last in (
            ("v5", 323, (3, 4, 5, 6), "2024-08-01", "2025-01-31"),
            ("v6", 131, (6,), "2025-02-01", "2025-05-31"),
        )
    ),
    Benchmark(
        name="scibench", source="xw27/scibench", split="train", size=692, domain="non-math", kind="math",
        question="problem_text", gold=scibench_gold, columns=("answer_number", "unit"),
        meta=("source", "unit", "problemid"), instruction=scibench_instruction, tolerance=0.05,
        notes="a number within 5 % of the gold is right, as published",
    ),
    Benchmark(
        name="humaneval", source="openai/openai_humaneval", split="test", size=164, domain="non-math", kind="code",
        question="prompt", gold=humaneval_gold, id="task_id", columns=("canonical_solution", "test", "entry_point"),
        instruction=COMPLETE, tests=humaneval_tests, notes="not in the paper; programs run in a sandbox",
    ),
)  # fmt: skip

BENCHMARKS: dict[str, Benchmark] = {entry.name: entry for entry in ENTRIES}
