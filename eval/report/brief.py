"""The one table of a short report."""

import math
from collections.abc import Iterable

from offleash.eval.comparison.result import Comparison, PolicyResult
from offleash.eval.comparison.scopes import ROWS
from offleash.eval.report.numbers import RATES, count, estimate, expectation, percent, row_cell, share
from offleash.eval.report.sanitize import one_line
from offleash.eval.report.tables import Table, line_cells, pass_cells
from offleash.eval.report.words import LEASH_SHORT, METRIC_WORDS, NOISE_NOTE, common_k, k_words, last_common, units_word
from offleash.eval.stats.intervals import Estimate


def brief_table(comparison: Comparison) -> Table:
    """The one table of a short report: base, policy and noise; of a series one row per policy."""
    return _brief_pair(comparison.policies[0]) if len(comparison.policies) == 1 else _brief_series(comparison)


def _brief_pair(result: PolicyResult) -> Table:
    scope, what = result.overall, units_word(result.overall)
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
    note = f"{k_words(scope)} samples of {scope.problems:,} problems. {NOISE_NOTE}"
    return Table("brief", "Base and policy", ("", "base", "policy", "noise"), tuple(rows), note)


def _brief_series(comparison: Comparison) -> Table:
    k = common_k(comparison)
    first = comparison.policies[0].overall
    moves = ("lost", "noise", "gained", "noise")
    header = ("", "pass@1", f"pass@{k:,}", *moves, "NSCR", "reweighting", "verdict", "failed")
    base = _failed(first.rows[key].base for key in RATES)
    rows = [("base", *pass_cells(first.curves, first.curves.base, k), *[""] * 7, base)]
    for result in comparison.policies:
        scope, units = result.overall, result.overall.units.any_hit
        moved = [
            cell
            for name, noise in (("shrunk", units.shrunk), ("expanded", units.expanded))
            for cell in (count(units.estimates[name].value), expectation(noise.expected))
        ]
        line, word = line_cells(result, "units")
        passes = pass_cells(scope.curves, scope.curves.policy, k)
        failed = _failed(scope.rows[key].policy for key in RATES)
        nscr = estimate(units.estimates["nscr"])
        rows.append((one_line(result.side.label, 24), *passes, *moved, nscr, line.split(" ")[0], word, failed))
    note = (
        f"{units_word(first).capitalize()} in {k_words(first)} samples of {first.problems:,} problems. {NOISE_NOTE} "
        f"Reweighting: NSCR of {LEASH_SHORT}. Failed: no answer, truncated, timed out or verifier error."
    )
    return Table("brief", "Series", header, tuple(rows), note)


def _failed(rates: Iterable[Estimate]) -> str:
    return percent(math.fsum(rate.value for rate in rates))
