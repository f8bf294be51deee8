"""Agreement with the labelled answer pairs in other projects' own tests, ours and plain math-verify's.

    python bench/agreement.py [--all]

The pairs are data: `tests/eval/verify/math_answers/pairs.jsonl`, one a line with its project and file. Where a test
has a whole completion, the pair is the answer in it; completions from which it would have to be guessed are left out.
A pair with `disputed` has a label that does not hold in general, for the reason given, and is not counted. Plain
math-verify is `verify(parse("$gold$"), parse("$answer$"))`, the wrapping that suits it best of those tried. `--all`
lists the pairs on which either is wrong.
"""

import argparse
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from math_verify import parse, verify

from offleash.eval.verify.math_answers.mathematics import MathVerifier

PAIRS = Path(__file__).parents[1] / "tests" / "eval" / "verify" / "math_answers" / "pairs.jsonl"
Pair = dict[str, Any]


def load() -> list[Pair]:
    """The pairs whose labels are not disputed."""
    pairs = [json.loads(line) for line in PAIRS.read_text().splitlines()]
    return [pair for pair in pairs if "disputed" not in pair]


def ours(pairs: Sequence[Pair]) -> list[bool]:
    verifier = MathVerifier(job_seconds=60)
    try:
        found = verifier.judge([pair["gold"] for pair in pairs], [pair["answer"] for pair in pairs])
    finally:
        verifier.close()
    return [one.correct for one in found]


def plain(pairs: Sequence[Pair]) -> list[bool]:
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    return [bool(verify(parse(f"${pair['gold']}$"), parse(f"${pair['answer']}$"))) for pair in pairs]


def errors(pairs: Sequence[Pair], verdicts: Sequence[bool]) -> tuple[list[Pair], list[Pair]]:
    """The pairs accepted though they differ, and those rejected though they are the same."""
    judged = list(zip(pairs, verdicts, strict=True))
    return [p for p, v in judged if v and not p["same"]], [p for p, v in judged if not v and p["same"]]


def row(name: str, pairs: Sequence[Pair], verdicts: Sequence[Sequence[bool]]) -> str:
    counts = [f"{len(accepted)} / {len(rejected)}" for accepted, rejected in (errors(pairs, one) for one in verdicts)]
    return f"| {name} | {len(pairs)} | {' | '.join(counts)} |"


def main(argv: Sequence[str] | None = None) -> list[tuple[str, float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="list the pairs on which either is wrong")
    args = parser.parse_args(argv)
    pairs = load()
    verdicts = [ours(pairs), plain(pairs)]
    print("| project | pairs | ours: false accepts / rejects | plain math-verify |\n|---|---|---|---|")
    for project in dict.fromkeys(pair["project"] for pair in pairs):
        chosen = [index for index, pair in enumerate(pairs) if pair["project"] == project]
        print(row(project, [pairs[i] for i in chosen], [[one[i] for i in chosen] for one in verdicts]))
    print(row("all", pairs, verdicts))
    if args.all:
        for name, one in zip(("ours", "plain"), verdicts, strict=True):
            for kind, wrong in zip(("accepts", "rejects"), errors(pairs, one), strict=True):
                for pair in wrong:
                    print(f"{name} {kind}  gold {pair['gold']}  answer {pair['answer']}  ({pair['project']})")
    right = [sum(verdict == pair["same"] for pair, verdict in zip(pairs, one, strict=True)) for one in verdicts]
    return [("labelled pairs judged right against plain math-verify", right[0] / right[1])]


def quick() -> list[tuple[str, float]]:
    """For `make bench`."""
    return main([])


if __name__ == "__main__":
    main()
