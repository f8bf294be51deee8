"""The tables of a report as plain cells, the same for every format.

Numbers are rounded only here and in `words.py`. Fractions have no leading zero, as in the paper; undefined numbers are
a dash. Cells are not escaped here but by the writer of each format.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from offleash.eval.comparison.result import Comparison, Curves, Importance, Leash, Level, Noise, PolicyResult, Scope
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
    row_cell,
    share,
)
from offleash.eval.report.sanitize import one_line
from offleash.eval.report.words import LEASH, common_k, crossing_cell, k_words, lead_words, moved_words, summary
from offleash.eval.stats.importance import LARGEST_VARIANCE
from offleash.eval.stats.intervals import Estimate
from offleash.eval.stats.support import CELLS, METRICS, detection_limit

_CELL_NAMES = ("P", "S", "E", "O")
_P_NOTE = (
    "p(S), p(E): of how firmly the units that moved were held, if nothing had changed; all samples of a fixed plan."
)
SHOWN_UNITS = 10
"""Units lost and gained that a table lists; the page has them all."""


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
        f"{k_words(scope)} samples of {scope.problems:,} problems. P preserved, S shrunk (only the base), E expanded "
        "(only the policy), O out of both; units are (problem, correct answer) pairs. Expected: of a second sample of "
        f"the base, with p of {tested}, and how many of them are surely no chance, one by one (Holm, 5 %"
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
            rows.append((one_line(scope.name, 40), f"{scope.problems:,}", k_words(scope), *_level_cells(level)))
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
        rows = [("base", "", k_words(first), *pass_cells(first.curves, first.curves.base, k), *[""] * 13)]
        for result in comparison.policies:
            scope = result.overall
            level = scope.problem_level if name == "problems" else scope.units
            step = DASH if result.side.step is None else f"{result.side.step:,}"
            lead = (one_line(result.side.label, 40), step, k_words(scope))
            passes = pass_cells(scope.curves, scope.curves.policy, k)
            line = line_cells(result, name)
            rows.append((*lead, *passes, *_level_cells(level)[2:], *line, crossing_cell(scope.curves)))
        note = (
            f"P preserved, S shrunk, E expanded, O out, at hits ≥ 1 in k samples. {_P_NOTE} "
            f"Reweighting: {LEASH}. "
            "Crossing: the k at which the lead in pass@k changes hands, or who is ahead beyond noise; a dash where "
            "no lead is."
        )
        tables.append(Table(f"series-{name}", f"Series: {name}", header, tuple(rows), note))
    return tables


def line_cells(result: PolicyResult, level: str) -> tuple[str, str]:
    if result.leash is None:
        return DASH, DASH
    line = result.leash.problem_level if level == "problems" else result.leash.units
    return estimate(line.against.line), line.word or DASH


def pass_cells(curves: Curves, side: Sequence[Estimate], k: int) -> list[str]:
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
        f"{LEASH}: what {k_words(scope)} samples of q(y) exp(R/β)/Z would show beside this base, one β for all "
        f"problems. {confidence} intervals over problems. Rates that the base's samples do not show are estimated; the "
        "upper bound holds whatever they are, and is nearer with more samples of the base than k. Expands: beyond the "
        "reweighting; as good: at most .01 below it; shrinks: NSCR below 0; keeps: at most .01 below 0; each beyond "
        "its error."
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


def _levels(scope: Scope) -> list[tuple[str, Level]]:
    if scope.one_unit:
        return [("problems", scope.problem_level)]
    return [("units", scope.units), ("problems", scope.problem_level)]
