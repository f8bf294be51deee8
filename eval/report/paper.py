"""Our numbers beside the paper's, for the tasks that both have: support counts and metrics, sample statistics."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath

from offleash.eval.comparison.paper import SAMPLES, SAMPLES_K, ModelPair
from offleash.eval.comparison.result import Comparison, PolicyResult, Scope
from offleash.eval.comparison.scopes import ROWS
from offleash.eval.pool.spec import PoolSpec
from offleash.eval.report.numbers import DASH, count, row_cell, share, span
from offleash.eval.report.tables import Table
from offleash.eval.stats.support import CELLS, METRICS, Dynamics
from offleash.eval.tasks import TASKS
from offleash.eval.tasks.loading import Benchmark


def beside_paper(pair: ModelPair, comparison: Comparison) -> tuple[Comparison, list[Table]]:
    """The comparison with warnings where its setup differs from the paper's, and tables of the last policy."""
    result = comparison.policies[-1]
    tables = published_tables(pair, result)
    warnings = [f"the paper has no numbers of these tasks for {pair.name}"]
    if tables:
        sides = (comparison.base, result.side)
        specs = ([spec for spec in side.specs if spec.task in pair.tasks] for side in sides)
        warnings = published_warnings(pair, *specs)
    return replace(comparison, warnings=(*comparison.warnings, *warnings)), tables


def published_warnings(pair: ModelPair, base: Iterable[PoolSpec], policy: Iterable[PoolSpec]) -> list[str]:
    """Models and settings that differ from the paper's, one line per side and field."""
    found: dict[str, None] = {}
    for side, model, specs in (("base", pair.base, base), ("policy", pair.policy, policy)):
        for spec in specs:
            if not _same_model(spec.model, model):
                found[_other(pair, side, "model", PurePath(spec.model).name, model)] = None
            for field in ("temperature", "top_p", "max_new_tokens"):
                ours, theirs = getattr(spec, field), getattr(pair, field)
                if ours != theirs:
                    found[_other(pair, side, field, "unknown" if ours < 0 else f"{ours:g}", f"{theirs:g}")] = None
    return list(found)


def _other(pair: ModelPair, side: str, field: str, ours: str, theirs: str) -> str:
    return f"the {field} of the {side} is {ours}, but {theirs} in the paper ({pair.name}): the numbers may not compare"


def _same_model(name: str, wanted: str) -> bool:
    """A local copy is recognized by its folder's name."""
    return name == wanted or (PurePath(name).is_absolute() and PurePath(name).name == PurePath(wanted).name)


def published_tables(pair: ModelPair, result: PolicyResult) -> list[Table]:
    """One table of support and one of samples, if there are tasks that both have."""
    made = (_support(pair, result), _samples(pair, result))
    return [table for table in made if table.rows]


def _support(pair: ModelPair, result: PolicyResult) -> Table:
    rows: list[tuple[str, ...]] = []
    for scope, theirs, draws in _common(pair, result):
        rows.append((scope.name, "ours", span(scope.k_min, scope.k_max), *_counted(scope)))
        rows.append(("", "paper", draws, *_cells(theirs)))
    header = ("", "", "k", "problems", "P", "S", "E", "O", *(metric.upper() for metric in METRICS))
    note = (
        f"{pair.name}: problems with a correct answer in k samples, as in arXiv 2507.14843. A domain is shown "
        "if all its tasks were sampled."
    )
    return Table("published", "Comparison with the paper: support", header, tuple(rows), note)


def _common(pair: ModelPair, result: PolicyResult) -> Iterator[tuple[Scope, Dynamics, str]]:
    """(our scope, their counts, their k) for every task and every complete domain that both have."""
    ours = {scope.name: scope for scope in result.tasks}
    for name, theirs in pair.paper.tasks.items():
        if name in ours:
            yield ours[name], theirs, f"{pair.tasks[name]:,}"
    domains = {scope.name: scope for scope in result.domains}
    for name, theirs in pair.paper.domains.items():
        tasks = [task for task in pair.tasks if _domain(task) == name]
        if name in domains and set(tasks) <= set(ours):
            yield domains[name], theirs, span(*(pair.tasks[task] for task in tasks))
    if set(pair.tasks) <= set(ours) and len(pair.paper.domains) > 1:
        yield result.overall, _sum(pair.paper.domains), span(*pair.tasks.values())


def _samples(pair: ModelPair, result: PolicyResult) -> Table:
    rows: list[tuple[str, ...]] = []
    ours = {scope.name: scope for scope in result.tasks}
    for name, theirs in pair.paper.samples.items():
        for key in SAMPLES if name in ours else ():
            contrast, k = ours[name].rows[key], ours[name].rows_k
            sides = (contrast.base, contrast.policy)
            mine = [row_cell(key, side, interval=False) if k == SAMPLES_K else DASH for side in sides]
            shown = [share(value) if key == "avg" else f"{value:g}" for value in theirs[key]]
            label = ROWS[key].replace("@k", f"@{SAMPLES_K}")
            rows.append((name if key == SAMPLES[0] else "", label, f"{k:,}", *mine, *shown))
    note = (
        f"The paper's numbers are from {SAMPLES_K} samples per problem. Ours are left out where k, the samples at "
        "which both sides are compared, differs. The paper does not state the logarithm's base or the temperature of "
        "its token entropy."
    )
    header = ("", "", "k, ours", "base, ours", "policy, ours", "base, paper", "policy, paper")
    return Table("published-samples", "Comparison with the paper: samples", header, tuple(rows), note)


def _counted(scope: Scope) -> list[str]:
    estimates = scope.problem_level.any_hit.estimates
    counts = [float(scope.problems), *(estimates[cell].value for cell in CELLS)]
    return [*map(count, counts), *(share(estimates[metric].value) for metric in METRICS)]


def _cells(d: Dynamics) -> list[str]:
    counts = [d.total, d.preserved, d.shrunk, d.expanded, d.out]
    return [*(f"{units:,}" for units in counts), *(share(getattr(d, metric)) for metric in METRICS)]


def _sum(domains: Mapping[str, Dynamics]) -> Dynamics:
    return Dynamics(*(sum(getattr(d, cell) for d in domains.values()) for cell in CELLS))


def _domain(task: str) -> str:
    entry = TASKS[task]
    return entry.domain if isinstance(entry, Benchmark) else ""
