"""The tables of a report as plain cells, the same for every format, and the text above them.

Numbers are rounded only here. Fractions have no leading zero, as in the paper; undefined numbers are a dash.
Cells are not escaped here but by the writer of each format.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from offleash.eval.comparison.result import (
    Comparison,
    Curves,
    Importance,
    Leash,
    Level,
    Moved,
    Noise,
    PolicyResult,
    Scope,
    SideInfo,
    Spellings,
)
from offleash.eval.comparison.scopes import ROWS
from offleash.eval.pool.counts import VALUES
from offleash.eval.report.numbers import (
    DASH,
    RATES,
    count,
    estimate,
    expectation,
    number,
    p_value,
    p_words,
    percent,
    row_cell,
    share,
    span,
)
from offleash.eval.report.sanitize import one_line
from offleash.eval.stats.curves import Lead
from offleash.eval.stats.importance import LARGEST_VARIANCE
from offleash.eval.stats.intervals import Estimate
from offleash.eval.stats.leash.verdict import Word
from offleash.eval.stats.support import CELLS, METRICS, detection_limit

_CELL_NAMES = ("P", "S", "E", "O")
_P_NOTE = (
    "p(S), p(E): of how firmly the units that moved were held, if nothing had changed; all samples of a fixed plan."
)


LEASH = "KL-optimal reweighting of the base at this pass@1"
LEASH_SHORT = "the reweighted base at this pass@1"
NOISE_NOTE = "Noise: what a second sample of the base would show, if nothing had changed."
METRIC_WORDS = {
    "srr": "fraction of base units retained",
    "ndr": "fraction of policy units that are new",
    "nscr": "(gained - lost) / union",
}
SHOWN_UNITS = 10
"""Units lost and gained that a table lists; the page has them all."""
VERDICTS: dict[Word, str] = {
    "shrinks": "Support shrinks",
    "expands": "Support expands",
    "as good as reweighting": "As good as reweighting",
    "keeps": "Support is kept",
}


@dataclass(frozen=True, slots=True)
class Table:
    """`name` is short and stable, and is part of the LaTeX label. The first column is text, the others are numbers."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """For the whole series (`result` is None) or for one policy."""

    title: str
    lead: tuple[str, ...]
    tables: tuple[Table, ...]
    result: PolicyResult | None = None


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


def sections(comparison: Comparison) -> list[Section]:
    """The series first, if there are several policies; then each policy."""
    found = []
    if len(comparison.policies) > 1:
        found.append(Section("Series", (), tuple(_series(comparison))))
    for result in comparison.policies:
        found.append(Section(result.side.label, summary(result), tuple(_tables(comparison, result)), result))
    return found


def short_sections(comparison: Comparison) -> list[Section]:
    """The series, if there are several policies, and the last policy."""
    every = sections(comparison)
    return every if len(every) == 1 else [every[0], every[-1]]


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
        f"{verdict_word(result) or 'No verdict'} at {result.side.label}: of the {known} {_units(scope)} that the "
        f"base reached in {_k(scope)} samples, {moved[0]}; {moved[1]}. {', '.join(passes)}."
    )
    if result.leash is None:
        return text
    found = result.leash.units.against
    line = f" NSCR {estimate(found.nscr)}"
    return f"{text}{line}." if math.isnan(found.line.value) else f"{text}{line}; {LEASH}: {estimate(found.line)}."


def brief_table(comparison: Comparison) -> Table:
    """The one table of a short report: base, policy and noise; of a series one row per policy."""
    return _brief_pair(comparison.policies[0]) if len(comparison.policies) == 1 else _brief_series(comparison)


def _brief_pair(result: PolicyResult) -> Table:
    scope, what = result.overall, _units(result.overall)
    units, curves = scope.units.any_hit, scope.curves
    rows: list[tuple[str, ...]] = [
        (f"pass@{curves.ks[i]:,}", estimate(curves.base[i]), estimate(curves.policy[i]), "")
        for i in sorted({0, last_common(curves)})
    ]
    for verb, cell, noise in (("lost", "shrunk", units.shrunk), ("gained", "expanded", units.expanded)):
        rows.append((f"{what} {verb}", "", count(units.estimates[cell].value), expectation(noise.expected)))
    for metric, words in METRIC_WORDS.items():
        value = units.estimates[metric]
        rows.append((f"{metric.upper()} ({words})", "", estimate(value), share(units.noise_metrics[metric])))
    if result.leash is not None:
        rows.append((f"NSCR of {LEASH_SHORT}", "", estimate(result.leash.units.against.line), ""))
    for key in ("answer_entropy", "token_entropy", *RATES):
        row = scope.rows[key]
        rows.append((ROWS[key], *(row_cell(key, side, key not in RATES) for side in (row.base, row.policy)), ""))
    note = f"{_k(scope)} samples of {scope.problems:,} problems. {NOISE_NOTE}"
    return Table("brief", "Base and policy", ("", "base", "policy", "noise"), tuple(rows), note)


def _brief_series(comparison: Comparison) -> Table:
    k = common_k(comparison)
    first = comparison.policies[0].overall
    moves = ("lost", "noise", "gained", "noise")
    header = ("", "pass@1", f"pass@{k:,}", *moves, "NSCR", "reweighting", "verdict", "failed")
    base = _failed(first.rows[key].base for key in RATES)
    rows = [("base", *_passes(first.curves, first.curves.base, k), *[""] * 7, base)]
    for result in comparison.policies:
        scope, units = result.overall, result.overall.units.any_hit
        moved = [
            cell
            for name, noise in (("shrunk", units.shrunk), ("expanded", units.expanded))
            for cell in (count(units.estimates[name].value), expectation(noise.expected))
        ]
        line, word = _line_cells(result, "units")
        passes = _passes(scope.curves, scope.curves.policy, k)
        failed = _failed(scope.rows[key].policy for key in RATES)
        nscr = estimate(units.estimates["nscr"])
        rows.append((one_line(result.side.label, 24), *passes, *moved, nscr, line.split(" ")[0], word, failed))
    note = (
        f"{_units(first).capitalize()} in {_k(first)} samples of {first.problems:,} problems. {NOISE_NOTE} "
        f"Reweighting: NSCR of {LEASH_SHORT}. Failed: no answer, truncated, timed out or verifier error."
    )
    return Table("brief", "Series", header, tuple(rows), note)


def _failed(rates: Iterable[Estimate]) -> str:
    return percent(math.fsum(rate.value for rate in rates))


def _units(scope: Scope) -> str:
    return "problems" if scope.one_unit else "units"


def summary(result: PolicyResult) -> tuple[str, ...]:
    """The main findings, in sentences."""
    scope = result.overall
    units = scope.units.any_hit
    what = _units(scope)
    known = count(units.estimates["preserved"].value + units.estimates["shrunk"].value)
    lost, gained = (count(units.estimates[cell].value) for cell in ("shrunk", "expanded"))
    curves = scope.curves
    last = last_common(curves)
    spelled = () if scope.spellings is None else (spelling_words(scope.spellings),)
    return (
        *([leash_words(result)] if result.leash is not None else []),
        f"Of the {known} {what} that the base reached in {_k(scope)} samples, the policy lost {lost}; "
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


def last_common(curves: Curves) -> int:
    """The index of the largest k that both sides have."""
    return max(i for i, (b, p) in enumerate(zip(curves.base, curves.policy, strict=True)) if _both(b, p))


def _both(base: Estimate, policy: Estimate) -> bool:
    return not (math.isnan(base.value) or math.isnan(policy.value))


def _tables(comparison: Comparison, result: PolicyResult) -> list[Table]:
    confidence = f"{comparison.confidence:.0%}"
    found = [_support_table(result.overall, confidence)]
    if result.leash is not None:
        found.append(_leash_table(result.overall, result.leash, confidence))
    if len(result.tasks) > 1:
        found += _scope_tables("tasks", "By task", result.tasks)
    if {scope.name for scope in result.domains} != {scope.name for scope in result.tasks} and len(result.domains) > 1:
        found += _scope_tables("domains", "By domain", result.domains)
    found += [_passk_table(result, confidence), _rows_table(result.overall, confidence)]
    if len(result.tasks) > 1:
        found.append(_rows_by_task(result.tasks))
    if result.overall.perplexity:
        found.append(_perplexity_table(result.overall))
    if result.sensitivity:
        found.append(_sensitivity_table(result))
    if result.importance is not None:
        found.append(_importance_table(result.importance, confidence))
    return [*found, *_moved_tables(result)]


def _support_table(scope: Scope, confidence: str) -> Table:
    rows = []
    spelled = [] if scope.spellings is None else [("spellings", scope.spellings.level)]
    for name, level in [*_levels(scope), *spelled]:
        for support in (level.any_hit, level.stable):
            if support is None:
                continue
            counts = [count(support.estimates[cell].value) for cell in CELLS]
            if name == "spellings":
                counts[-1] = DASH  # those that nobody sampled are not known
            metrics = [estimate(support.estimates[metric]) for metric in METRICS]
            noise = [_noise_words(support.shrunk, scope.cut), _noise_words(support.expanded, scope.cut)]
            rows.append((f"{name}, hits ≥ {support.threshold}", *counts, *noise, *metrics))
    header = ("", *_CELL_NAMES, "S expected", "E expected", *(metric.upper() for metric in METRICS))
    stable = scope.units.stable
    stable_limit = f", {stable.detection_limit:.2g} outside hits ≥ {stable.threshold}" if stable else ""
    tested = "their number at this k" if scope.cut else "how firmly the units that moved were held"
    note = (
        f"{_k(scope)} samples of {scope.problems:,} problems. P preserved, S shrunk (only the base), E expanded (only "
        "the policy), O out of both; units are (problem, correct answer) pairs. Expected: of a second sample of the "
        f"base, with p of {tested}, and how many of them are surely no chance, one by one (Holm, 5 %"
        f"{'; from all samples' if scope.cut else ''}). {confidence} intervals over problems. "
        f"Detection limit: {scope.units.any_hit.detection_limit:.2g} if never sampled{stable_limit}."
    )
    if spelled:
        note += (
            " Spellings: the ways in which correct answers were written; how many noise alone would move is not known, "
            "because those that nobody sampled are not listed."
        )
    if any("." in cell for row in rows for cell in row[1:5]):
        note += " Counts with a decimal are the mean over all subsets of that many samples."
    return Table("support", "Support", header, tuple(rows), note)


def _noise_words(noise: Noise, cut: bool) -> str:
    """12.3 (p = .031; 2 sure). `cut`: the count is of fewer samples than there are, and so is the p beside it."""
    if math.isnan(noise.p_strength):
        return DASH
    return f"{expectation(noise.expected)} ({p_words(noise.p if cut else noise.p_strength)}; {noise.sure:,} sure)"


def _scope_tables(name: str, heading: str, scopes: Sequence[Scope]) -> list[Table]:
    """The paper's Tables 6 to 12, at the problem level and, where it differs, the unit level."""
    header = ("", "problems", "k", "base", "policy", *(m.upper() for m in METRICS), *_CELL_NAMES, "p(S)", "p(E)")
    tables = []
    several = not all(scope.one_unit for scope in scopes)
    for level_name in ("problems", "units") if several else ("problems",):
        rows = []
        for scope in scopes:
            level = scope.problem_level if level_name == "problems" else scope.units
            rows.append((one_line(scope.name, 40), f"{scope.problems:,}", _k(scope), *_level_cells(level)))
        tables.append(Table(f"{name}-{level_name}", f"{heading}: {level_name}, hits ≥ 1", header, tuple(rows), _P_NOTE))
    return tables


def _level_cells(level: Level) -> list[str]:
    """Base rate, policy rate, the metrics, the counts and the two p-values."""
    support = level.any_hit
    p, s, e, o = (support.estimates[cell].value for cell in CELLS)
    total = p + s + e + o
    rates = [share((p + side) / total if total else math.nan) for side in (s, e)]
    metrics = [estimate(support.estimates[metric]) for metric in METRICS]
    counts = [count(units) for units in (p, s, e, o)]
    return [*rates, *metrics, *counts, p_value(support.shrunk.p_strength), p_value(support.expanded.p_strength)]


def common_k(comparison: Comparison) -> int:
    """The largest k that every policy and the base have."""
    known = [
        {k for k, one, other in zip(c.ks, c.base, c.policy, strict=True) if _both(one, other)}
        for c in (result.overall.curves for result in comparison.policies)
    ]
    return max(set.intersection(*known))


def _series(comparison: Comparison) -> list[Table]:
    """The paper's Table 4: one row per checkpoint."""
    k = common_k(comparison)
    metrics = [metric.upper() for metric in METRICS]
    header = ("", "step", "k", "pass@1", f"pass@{k:,}", *metrics, *_CELL_NAMES, "p(S)", "p(E)")
    header += ("NSCR of reweighting", "verdict", "crossing")
    several = not all(result.overall.one_unit for result in comparison.policies)
    tables = []
    for name in ("problems", "units") if several else ("problems",):
        first = comparison.policies[0].overall
        rows = [("base", "", _k(first), *_passes(first.curves, first.curves.base, k), *[""] * 13)]
        for result in comparison.policies:
            scope = result.overall
            level = scope.problem_level if name == "problems" else scope.units
            step = DASH if result.side.step is None else f"{result.side.step:,}"
            lead = (one_line(result.side.label, 40), step, _k(scope))
            passes = _passes(scope.curves, scope.curves.policy, k)
            line = _line_cells(result, name)
            rows.append((*lead, *passes, *_level_cells(level)[2:], *line, crossing_cell(scope.curves)))
        note = (
            f"P preserved, S shrunk, E expanded, O out, at hits ≥ 1 in k samples. {_P_NOTE} "
            f"Reweighting: {LEASH}. "
            "Crossing: the k at which the lead in pass@k changes hands, or who is ahead beyond noise; a dash where "
            "no lead is."
        )
        tables.append(Table(f"series-{name}", f"Series: {name}", header, tuple(rows), note))
    return tables


def _line_cells(result: PolicyResult, level: str) -> tuple[str, str]:
    if result.leash is None:
        return DASH, DASH
    line = result.leash.problem_level if level == "problems" else result.leash.units
    return estimate(line.against.line), line.word or DASH


def _passes(curves: Curves, side: Sequence[Estimate], k: int) -> list[str]:
    return [share(side[0].value), share(side[curves.ks.index(k)].value)]


def _leash_table(scope: Scope, leash: Leash, confidence: str) -> Table:
    pairs = [("units", scope.units, leash.units), ("problems", scope.problem_level, leash.problem_level)]
    rows = []
    for name, level, line in pairs[1:] if scope.one_unit else pairs:
        found, counts = line.against, [level.any_hit.estimates[cell].value for cell in CELLS]
        rows += [
            (f"{name}: policy", *map(count, counts), estimate(found.nscr), line.word or DASH),
            (f"{name}: reweighting", *map(count, line.cells.values()), estimate(found.line), ""),
            (f"{name}: policy − reweighting", *[""] * 4, estimate(found.above), ""),
        ]
    note = (
        f"{LEASH}: what {_k(scope)} samples of q(y) exp(R/β)/Z would show beside this base, one β for all problems. "
        f"{confidence} intervals over problems. Rates that the base's samples do not show are estimated; the upper "
        "bound holds whatever they are, and is nearer with more samples of the base than k. Expands: beyond the "
        "reweighting; as good: at most .01 below it; shrinks: NSCR below 0; each beyond its error; keeps: none."
    )
    return Table("leash", LEASH, ("", *_CELL_NAMES, "NSCR", "verdict"), tuple(rows), note)


def _passk_table(result: PolicyResult, confidence: str) -> Table:
    curves = result.overall.curves
    lines = result.leash.pass_at_k if result.leash is not None else (math.nan,) * len(curves.ks)
    columns = zip(curves.ks, curves.base, curves.policy, lines, curves.difference, strict=True)
    rows = tuple(
        (f"{k:,}", estimate(base), estimate(policy), share(line), estimate(difference))
        for k, base, policy, line, difference in columns
    )
    note = (
        f"Unbiased; means over {result.overall.problems:,} problems with {confidence} intervals. Reweighting: {LEASH}, "
        f"estimated. {lead_words(curves)}"
    )
    return Table("pass-at-k", "pass@k", ("k", "base", "policy", "reweighting", "base − policy"), rows, note)


def _rows_table(scope: Scope, confidence: str) -> Table:
    rows = []
    for key, name in ROWS.items():
        contrast = scope.rows[key]
        if contrast.base.n or contrast.policy.n or key not in VALUES:
            cells = [row_cell(key, e) for e in (contrast.base, contrast.policy, contrast.difference)]
            rows.append((name.replace("@k", f"@{scope.rows_k}"), *cells))
    note = (
        f"Means over problems with {confidence} intervals; majority, plug-in entropy and cover are of {scope.rows_k:,} "
        "samples of each problem, token entropy and KL of those that were scored. A dash: the samples "
        "do not say."
    )
    return Table("samples", "Samples", ("", "base", "policy", "policy − base"), tuple(rows), note)


def _rows_by_task(scopes: Sequence[Scope]) -> Table:
    """The paper's Table 5: metrics x models x tasks."""
    rows = []
    for key, name in ROWS.items():
        if key in RATES:
            continue
        for side in ("base", "policy"):
            values = [getattr(scope.rows[key], side) for scope in scopes]
            if any(value.n for value in values):
                rows.append((f"{name}: {side}", *(row_cell(key, value, interval=False) for value in values)))
    header = ("", *(one_line(scope.name, 24) for scope in scopes))
    return Table("samples-by-task", "Samples by task", header, tuple(rows))


def _perplexity_table(scope: Scope) -> Table:
    cells = ("all", "preserved", "shrunk", "expanded", "out")
    rows = tuple(
        (
            f"sampled by the {row.drawn_by}, under {row.under if row.under == 'itself' else f'the {row.under}'}",
            *(estimate(row.estimates[cell], number) for cell in cells),
        )
        for row in scope.perplexity
    )
    note = "exp of the mean negative log-probability per token, by the outcome of the problem."
    return Table("perplexity", "Perplexity", ("", *cells), rows, note)


def _sensitivity_table(result: PolicyResult) -> Table:
    rows = []
    for row in result.sensitivity:
        table = row.observed
        counts = [f"{count:,}" for count in (table.preserved, table.shrunk, table.expanded, table.out)]
        observed = [share(getattr(table, metric)) for metric in ("srr", "ndr", "nscr")]
        posterior = [estimate(row.posterior[metric]) for metric in ("srr", "ndr", "nscr")]
        rows.append((f"1/{round(1 / row.eps):,}", *counts, *observed, *posterior))
    header = ("threshold ε", *_CELL_NAMES, "SRR", "NDR", "NSCR", "SRR (post.)", "NDR (post.)", "NSCR (post.)")
    note = (
        "Units whose rate is above the threshold ε: by hits / samples, and (post.) by empirical Bayes: a Beta "
        "fitted to each side's hits, with intervals over problems. Below "
        f"{detection_limit(result.overall.n_min):.2g} the counts cannot tell, and (post.) rests on that Beta."
    )
    return Table("sensitivity", "Sensitivity to the threshold", header, tuple(rows), note)


def _importance_table(found: Importance, confidence: str) -> Table:
    title = f"Units above 1/{round(1 / found.eps):,}, by importance weights"
    trust = f"Variance of the log-ratio: {number(found.log_ratio_variance)}; withheld from {LARGEST_VARIANCE:g} on."
    if found.withheld:
        return Table("importance", title, ("", "withheld because"), (("units", found.withheld),), trust)
    counts = [count(found.estimates[cell].value) for cell in CELLS]
    metrics = [estimate(found.estimates[metric]) for metric in METRICS]
    header = ("", *_CELL_NAMES, *(metric.upper() for metric in METRICS), "effective samples")
    note = (
        "The samples of both sides, each weighed by its probability under both models, which reaches below the "
        f"detection limit of counts. {confidence} intervals over problems. {trust}"
    )
    return Table("importance", title, header, (("units", *counts, *metrics, number(found.effective_samples)),), note)


def _moved_tables(result: PolicyResult) -> list[Table]:
    tables = []
    for name, moved in (("lost", result.lost), ("gained", result.gained)):
        rows = tuple(
            (
                one_line(example.change.problem_id, 40),
                one_line(example.change.answer, 40),
                f"{example.change.base_hits:,}/{example.change.base_n:,}",
                f"{example.change.policy_hits:,}/{example.change.policy_n:,}",
                "yes" if example.whole_problem else "no",
                "yes" if example.sure else "no",
            )
            for example in moved.examples[:SHOWN_UNITS]
        )
        header = ("problem", "answer", "base hits", "policy hits", "whole problem", "beyond chance")
        if rows:
            tables.append(Table(name, name.capitalize(), header, rows, moved_words(name, moved, len(rows))))
    return tables


def moved_words(name: str, moved: Moved, listed: int) -> str:
    """`listed`: how many are shown."""
    shown = f"; the {listed:,} clearest are shown" if listed < moved.units else ""
    units, problems = _counted(moved.units, "unit"), _counted(moved.problems, "problem")
    return f"{units} {name}, {problems} entirely, of all samples{shown}."


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _levels(scope: Scope) -> list[tuple[str, Level]]:
    if scope.one_unit:
        return [("problems", scope.problem_level)]
    return [("units", scope.units), ("problems", scope.problem_level)]


def _k(scope: Scope) -> str:
    return span(scope.k_min, scope.k_max)
