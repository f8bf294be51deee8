"""Verdicts per second at k = 1024 against math-verify in one process, plain and with a dict cache, all in this run.

    python bench/verify.py [--problems 24] [--k 1024] [--plain 256] [--workers 1]

Answers resemble those of a model: per problem a few dozen distinct spellings, numbers and LaTeX, with the answer
entropy of the paper's Table 5 (0.5 to 2.2 nats), at the end of a completion of ordinary length. Offleash starts cold,
without cache or process; a second figure leaves out the start of the worker, which a run pays once. The plain loop
parses each gold answer once, then parses and verifies one completion after another; it is timed on the first `--plain`
completions of each problem. The cached loop is what one would write next: it takes the last box out of a completion and
asks math-verify once for each distinct one, over all completions. Verdicts on which ours and the plain loop's differ
are printed.
"""

import argparse
import logging
import random
import time
from collections import Counter
from collections.abc import Sequence
from math import log

from math_verify import parse, verify

from offleash.eval.problem import Problem
from offleash.eval.tasks.math_tasks import MathAnswers
from offleash.eval.verify.extract import last_boxed
from offleash.eval.verify.math_answers import answers
from offleash.eval.verify.math_answers.expressions import possible_readings, read, read_equation
from offleash.eval.verify.math_answers.mathematics import MathVerifier, judge_here
from offleash.eval.verify.math_answers.normalize import normalize
from offleash.eval.verify.math_answers.shapes import understand

GOLDS = [
    ("18", ["18.0", "\\$18", "18 \\text{ dollars}"]),
    ("\\frac{1}{2}", ["0.5", "1/2", "\\dfrac{1}{2}", ".50"]),
    ("3\\sqrt{13}", ["\\sqrt{117}", "3 \\sqrt{13}"]),
    ("x^2+2x+1", ["(x+1)^2", "1+2x+x^2"]),
    ("\\left(3, \\frac{\\pi}{2}\\right)", ["(3,\\pi/2)", "(3, \\frac{\\pi}{2})"]),
    ("70000", ["70,000", "70000.00", "7\\times 10^4"]),
    ("6 - 5i", ["-5i+6"]),
    ("\\frac{3\\sqrt{3}}{4}", ["\\frac{3}{4}\\sqrt{3}", "0.75\\sqrt{3}"]),
    ("1,-2", ["-2, 1", "x=1, x=-2"]),
    ("90^\\circ", ["90", "90 \\text{ degrees}"]),
    ("(-\\infty, 2) \\cup (3, \\infty)", ["x<2 \\text{ or } x>3"]),
    ("\\frac{14}{3}", ["4\\frac{2}{3}", "14/3", "\\dfrac{14}{3}"]),
]
SENTENCES = [
    "Let me set up the equation and solve it step by step.",
    "First we expand the product and collect the terms of the same degree.",
    "Substituting $x = 3$ gives $2 \\cdot 3 + 1 = 7$, so this case is consistent.",
    "By symmetry the other case gives the same value.",
    "We have to be careful with the sign here.",
    "Dividing both sides by $4$, we obtain the ratio we were looking for.",
    "This is because $\\sin^2\\theta + \\cos^2\\theta = 1$ for every angle.",
    "Therefore the total is the sum of the two parts.",
]


def wrong_answer(rng: random.Random) -> str:
    """A wrong answer in one of the forms that models write."""
    a, b, c = rng.randint(2, 99), rng.randint(2, 30), rng.choice([2, 3, 5, 7, 11])
    shapes = [
        f"{a}",
        f"{a}.{b}",
        f"-{a}",
        f"\\frac{{{a}}}{{{b}}}",
        f"{b}\\sqrt{{{c}}}",
        f"\\frac{{{a}\\sqrt{{{c}}}}}{{{b}}}",
        f"{b}x^2-{a}x+{c}",
        f"\\left({a}, {b}\\right)",
        f"\\frac{{{a}\\pi}}{{{b}}}",
        f"{a}+{b}i",
        f"{a},{b}",
        f"2^{{{c}}}\\cdot {b}",
        f"{b}\\log {a}",
        f"{a}/{b}x",
        f"\\lfloor {a}\\sqrt{{{c}}} \\rfloor",  # only computer algebra can judge this one
    ]
    return rng.choice(shapes)


def completion(rng: random.Random, answer: str) -> str:
    body = " ".join(rng.choice(SENTENCES) for _ in range(rng.randint(6, 14)))
    return f"{body}\n\nThe final answer is \\boxed{{{answer}}}."


def weights_for(entropy: float, count: int) -> list[float]:
    """Geometric weights over `count` answers with the given entropy, by bisection on the ratio."""
    low, high = 1e-6, 1.0
    for _ in range(60):
        ratio = (low + high) / 2
        total = sum(ratio**i for i in range(count))
        found = -sum((ratio**i / total) * log(ratio**i / total) for i in range(count) if ratio**i > 1e-300)
        low, high = (ratio, high) if found < entropy else (low, ratio)
    return [low**i for i in range(count)]


def draw(rng: random.Random, problems: int, k: int) -> tuple[list[Problem], list[list[str]], list[float]]:
    made, drawn, entropies = [], [], []
    for index in range(problems):
        gold, spellings = GOLDS[index % len(GOLDS)]
        target = 0.5 + 1.7 * index / max(1, problems - 1)
        distinct = 40
        ranked = [wrong_answer(rng) for _ in range(distinct)]
        ranked[rng.randint(0, 2)] = gold
        weights = weights_for(target, distinct)
        answers = rng.choices(ranked, weights, k=k - distinct // 2) + rng.choices(ranked, k=distinct // 2)
        entropies.append(-sum(n / k * log(n / k) for n in Counter(answers).values()))
        answers = [rng.choice([gold, gold, *spellings]) if answer == gold else answer for answer in answers]
        rng.shuffle(answers)
        made.append(Problem(f"p{index}", "", gold))
        drawn.append([completion(rng, answer) for answer in answers])
    return made, drawn, entropies


def plain_loop(problems: list[Problem], drawn: list[list[str]], each: int) -> tuple[float, list[list[bool]]]:
    """math-verify as its README shows it. Returns the seconds and the verdicts."""
    parse("$1$")
    started = time.perf_counter()
    verdicts = []
    for problem, completions in zip(problems, drawn, strict=True):
        gold = parse(f"${problem.gold}$")
        verdicts.append([bool(verify(gold, parse(text))) for text in completions[:each]])
    return time.perf_counter() - started, verdicts


def cached_loop(problems: list[Problem], drawn: list[list[str]]) -> tuple[float, list[list[bool]]]:
    """math-verify with a dict of the boxes already judged. Returns the seconds and the verdicts."""
    parse("$1$")
    started = time.perf_counter()
    verdicts = []
    for problem, completions in zip(problems, drawn, strict=True):
        gold, known = parse(f"${problem.gold}$"), dict[str | None, bool]()
        for text in completions:
            if (box := last_boxed(text)) not in known:
                known[box] = bool(verify(gold, parse(f"\\boxed{{{box}}}")))
        verdicts.append([known[last_boxed(text)] for text in completions])
    return time.perf_counter() - started, verdicts


def main(argv: Sequence[str] | None = None) -> list[tuple[str, float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=24)
    parser.add_argument("--k", type=int, default=1024)
    parser.add_argument("--plain", type=int, default=256, help="completions of each problem given to the plain loop")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    logging.getLogger("math_verify").setLevel(logging.ERROR)

    problems, drawn, entropies = draw(random.Random(args.seed), args.problems, args.k)
    verifier = MathVerifier(workers=args.workers)
    task = MathAnswers("bench", problems, verifier=verifier)
    flat_problems = [problem for problem in task.problems for _ in range(args.k)]
    flat = [text for completions in drawn for text in completions]
    started = time.perf_counter()
    verdicts = task.verify(flat_problems, flat)
    ours = len(flat) / (time.perf_counter() - started)
    forget(verifier)
    started = time.perf_counter()
    task.verify(flat_problems, flat)
    running = len(flat) / (time.perf_counter() - started)
    verifier.close()

    seconds, plain = plain_loop(problems, drawn, args.plain)
    theirs = args.plain * len(problems) / seconds
    seconds, cached = cached_loop(problems, drawn)
    with_cache = len(flat) / seconds
    assert [one[: args.plain] for one in cached] == plain, "the cached loop must give the plain loop's verdicts"
    pairs = [
        (problem.gold, text, verdicts[index * args.k + i].correct, correct)
        for index, problem in enumerate(problems)
        for i, (text, correct) in enumerate(zip(drawn[index], plain[index], strict=False))
    ]
    differ = {(gold, text[text.rindex("\\boxed") :], a, b) for gold, text, a, b in pairs if a != b}
    mean = sum(entropies) / len(entropies)
    spread = f"{min(entropies):.2f} to {max(entropies):.2f} nats (mean {mean:.2f})"
    print(
        f"{len(problems)} problems, k {args.k}, {distinct_answers(drawn):.0f} distinct answers each, entropy {spread}"
    )
    statuses = dict(Counter(verdict.status for verdict in verdicts))
    print(f"verdicts {statuses}, correct {sum(verdict.correct for verdict in verdicts) / len(verdicts):.3f}")
    print(f"ours   {ours:10.0f} verdicts/s (cold, {len(flat)} completions, {args.workers} worker)")
    print(f"       {running:10.0f} verdicts/s with the worker already running, nothing remembered")
    print(f"       {undecided(flat_problems, flat)} distinct answers went to math-verify in the worker")
    print(f"plain  {theirs:10.0f} verdicts/s ({args.plain * len(problems)} completions)")
    print(f"cached {with_cache:10.0f} verdicts/s ({len(flat)} completions, a dict of the boxes already judged)")
    print(f"ratio  {ours / theirs:10.1f}x plain, {ours / with_cache:.1f}x cached")
    print(f"       {running / theirs:10.1f}x plain, {running / with_cache:.1f}x cached with the worker already running")
    print(f"verdicts that differ on {len(pairs)} completions: {len(differ)} distinct")
    for gold, text, mine, other in sorted(differ):
        print(f"  gold {gold}  {text}  ours {mine}, plain {other}")
    return [
        ("verdicts/s against plain math-verify", ours / theirs),
        ("verdicts/s against math-verify with a cache", ours / with_cache),
    ]


def forget(verifier: MathVerifier) -> None:
    """Clear all caches and start a new worker."""
    verifier._cache.clear()
    for cached in (answers.compare, answers.answer_class, understand, normalize):
        cached.cache_clear()
    for reader in (read, read_equation, possible_readings):
        reader.cache_clear()
    verifier.close()
    verifier.pool.map([{"gold": "1", "answer": "1"}])


def undecided(problems: list[Problem], completions: list[str]) -> int:
    pairs = {(problem.gold, last_boxed(text) or "") for problem, text in zip(problems, completions, strict=True)}
    return sum(judge_here(gold, answer) is None for gold, answer in pairs)


def distinct_answers(drawn: list[list[str]]) -> float:
    return sum(len({text[text.rindex("\\boxed") :] for text in completions}) for completions in drawn) / len(drawn)


def quick() -> list[tuple[str, float]]:
    """For `make bench`."""
    return main(["--problems", "8", "--k", "256", "--plain", "32"])


if __name__ == "__main__":
    main()
