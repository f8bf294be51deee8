"""The sentences of a report: what became of support, who leads at which k, and what noise explains."""

import math
from itertools import pairwise

from offleash.eval.comparison.result import Comparison, Curves, Moved, Noise, PolicyResult, Scope, SideInfo, Spellings
from offleash.eval.report.numbers import DASH, count, estimate, expectation, number, p_words, share, span
from offleash.eval.stats.curves import Lead
from offleash.eval.stats.intervals import Estimate
from offleash.eval.stats.leash.verdict import Word

LEASH = "KL-optimal reweighting of the base at this pass@1"
LEASH_SHORT = "the reweighted base at this pass@1"
NOISE_NOTE = "Noise: what a second sample of the base would show, if nothing had changed."
METRIC_WORDS = {
    "srr": "fraction of base units retained",
    "ndr": "fraction of policy units that are new",
    "nscr": "(gained - lost) / union",
}
VERDICTS: dict[Word, str] = {
    "shrinks": "Support shrinks",
    "expands": "Support expands",
    "as good as reweighting": "As good as reweighting",
    "keeps": "Support is kept",
    "undecided": "Undecided",
}


def title(comparison: Comparison) -> str:
    sides = [result.side for result in comparison.policies]
    series = {side.series for side in sides if side.step is not None}
    other = f"{len(sides)} policies"
    if len(sides) == 1:
        other = f"{sides[0].series}, {sides[0].label}," if any(series) else sides[0].label
    elif len(series) == 1 and any(series) and all(side.step is not None for side in sides):
        other = f"{sides[0].series}, {len(sides)} steps,"
    tasks = comparison.base.tasks
    named = ", ".join(tasks) if len(tasks) < 4 else f"{len(tasks)} tasks"
    return f"{other} compared with {comparison.base.label} ({named})"


def side_words(side: SideInfo) -> str:
    revision = f" ({side.revision})" if side.revision else ""
    knobs = {"temperature": side.temperature, "top-p": side.top_p, "at most": side.max_new_tokens}
    temperature, top_p, length = (f"{name} {'unknown' if v < 0 else f'{v:,g}'}" for name, v in knobs.items())
    return (
        f"{side.label}: {side.model}{revision}, {side.draws:,} samples of {side.problems:,} problems "
        f"({', '.join(side.tasks)}), {temperature}, {top_p}, {length} tokens, {side.engine}"
    )


def verdict_word(result: PolicyResult) -> str:
    """Support shrinks; "" where nothing can be said."""
    word = result.leash.units.word if result.leash is not None else None
    return VERDICTS[word] if word else ""


def verdict_words(result: PolicyResult) -> str:
    """What became of support in a few sentences: what a report opens with."""
    scope = result.overall
    units, curves, last = scope.units.any_hit, scope.curves, last_common(scope.curves)
    known = count(units.estimates["preserved"].value + units.estimates["shrunk"].value)
    moved = []
    for verb, cell, noise in (("lost", "shrunk", units.shrunk), ("gained", "expanded", units.expanded)):
        p = p_words(noise.p if scope.cut else noise.p_strength)
        moved.append(f"{count(units.estimates[cell].value)} are {verb} (noise {expectation(noise.expected)}, {p})")
    passes = [f"pass@{curves.ks[i]:,} {share(curves.base[i].value)} → {share(curves.policy[i].value)}" for i in
              sorted({0, last})]  # fmt: skip
    text = (
        f"{verdict_word(result) or 'No verdict'} at {result.side.label}: of the {known} {units_word(scope)} that the "
        f"base reached in {k_words(scope)} samples, {moved[0]}; {moved[1]}. {', '.join(passes)}."
    )
    if result.leash is None:
        return text
    found = result.leash.units.against
    line = f" NSCR {estimate(found.nscr)}"
    return f"{text}{line}." if math.isnan(found.line.value) else f"{text}{line}; {LEASH}: {estimate(found.line)}."


def summary(result: PolicyResult) -> tuple[str, ...]:
    """The main findings, in sentences."""
    scope = result.overall
    units = scope.units.any_hit
    what = units_word(scope)
    known = count(units.estimates["preserved"].value + units.estimates["shrunk"].value)
    lost, gained = (count(units.estimates[cell].value) for cell in ("shrunk", "expanded"))
    curves = scope.curves
    last = last_common(curves)
    spelled = () if scope.spellings is None else (spelling_words(scope.spellings),)
    return (
        *([leash_words(result)] if result.leash is not None else []),
        f"Of the {known} {what} that the base reached in {k_words(scope)} samples, the policy lost {lost}; "
        f"{noise_words(units.shrunk, 'lose', 'held', scope.cut)}. It gained {gained}; "
        f"{noise_words(units.expanded, 'gain', 'gained', scope.cut)}. "
        f"An answer that was never sampled may still have a probability of up to {units.detection_limit:.2g}.",
        f"pass@1 goes from {share(curves.base[0].value)} to {share(curves.policy[0].value)}, pass@{curves.ks[last]:,} "
        f"from {share(curves.base[last].value)} to {share(curves.policy[last].value)}. {lead_words(curves)}",
        *spelled,
    )


def spelling_words(spellings: Spellings) -> str:
    """Ways to write an answer beside the answers."""
    reached = spellings.level.any_hit.estimates
    p, s, e = (count(reached[cell].value) for cell in ("preserved", "shrunk", "expanded"))
    return (
        f"Of the ways in which correct answers were written, {p} were kept, {s} lost and {e} gained; of the "
        f"{spellings.lost:,} lost in all samples, {spellings.respelled:,} write an answer that the policy reaches."
    )


def leash_words(result: PolicyResult) -> str:
    """The verdict, and the numbers that it rests on."""
    assert result.leash is not None
    level = result.leash.units
    found = level.against
    word = VERDICTS[level.word] if level.word else "No verdict"
    if math.isnan(found.line.value):
        return f"{word}: NSCR is {estimate(found.nscr)}, and {LEASH} is undefined."
    return (
        f"{word}: NSCR is {estimate(found.nscr)}; {LEASH} (β = {number(found.beta)}) has "
        f"{estimate(found.line)}. The difference is {estimate(found.above)}."
    )


def noise_words(noise: Noise, verb: str, firmly: str, cut: bool = False) -> str:
    """What sampling alone explains of a count; the p to go by first. `cut`: the count is of fewer samples than all."""
    where = " in all samples" if cut else ""
    if math.isnan(noise.p_strength):
        return f"what sampling noise alone would {verb} is unknown"
    expected = f"sampling noise alone would {verb} {expectation(noise.expected)}"
    if math.isnan(noise.expected):
        expected = f"what sampling noise alone would {verb} is not informative at n = 1"
    return (
        f"{expected} ({p_words(noise.p_strength)} by how firmly they were {firmly}{where}, "
        f"{p_words(noise.p)} by their number). Beyond chance one by one{where}: {noise.sure:,}"
    )


def lead_words(curves: Curves) -> str:
    """Who leads at which k, over the k that both sides reach."""
    last = last_common(curves)
    within = f"{curves.ks[0]:,} to {curves.ks[last]:,}" if last else f"{curves.ks[0]:,}"
    if curves.state == "equal":
        return f"The two curves are equal at every k compared ({within})."
    if curves.state == "undecided":
        problems = curves.difference[0].n
        return f"Over {problems:,} problems neither curve leads beyond noise at any k compared ({within})."
    first, *later = curves.leads
    if not later:
        tied = any(e.value == 0 for e in curves.difference)
        return f"The {first.leader} leads at every k compared ({within}){' but for ties' if tied else ''}."
    spans = [f"The {_leader(first)} leads up to k = {_crossing(later[0])}"]
    spans += [f"the {_leader(one)} from there to {_crossing(other)}" for one, other in pairwise(later)]
    return f"{', '.join(spans)}, the {_leader(later[-1])} from there to {curves.ks[last]:,}."


def _leader(lead: Lead) -> str:
    return lead.leader if lead.beyond_noise else f"{lead.leader} (within noise)"


def _crossing(lead: Lead) -> str:
    return estimate(lead.since, number)


def crossing_cell(curves: Curves) -> str:
    """The k at which the lead changes hands; or who leads throughout; a dash if no lead is beyond noise."""
    if curves.state == "crosses":
        return ", ".join(number(lead.since.value) for lead in curves.leads[1:])
    return {"base_ahead": "base ahead", "policy_ahead": "policy ahead"}.get(curves.state, DASH)


def moved_words(name: str, moved: Moved, listed: int) -> str:
    """`listed`: how many are shown."""
    shown = f"; the {listed:,} clearest are shown" if listed < moved.units else ""
    units, problems = _counted(moved.units, "unit"), _counted(moved.problems, "problem")
    return f"{units} {name}, {problems} entirely, of all samples{shown}."


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def last_common(curves: Curves) -> int:
    """The index of the largest k that both sides have."""
    return max(i for i, (b, p) in enumerate(zip(curves.base, curves.policy, strict=True)) if _both(b, p))


def common_k(comparison: Comparison) -> int:
    """The largest k that every policy and the base have."""
    known = [
        {k for k, one, other in zip(c.ks, c.base, c.policy, strict=True) if _both(one, other)}
        for c in (result.overall.curves for result in comparison.policies)
    ]
    return max(set.intersection(*known))


def _both(base: Estimate, policy: Estimate) -> bool:
    return not (math.isnan(base.value) or math.isnan(policy.value))


def units_word(scope: Scope) -> str:
    return "problems" if scope.one_unit else "units"


def k_words(scope: Scope) -> str:
    return span(scope.k_min, scope.k_max)
