"""Numbers as a report prints them: fractions without leading zero, intervals in brackets, a dash if undefined."""

import math
from collections.abc import Callable

from offleash.eval.stats.intervals import Estimate

DASH = "–"
FRACTIONS = ("avg", "majority", "pcmd", "unseen", "unseen_correct", "cover_0.2", "cover_0.8")
"""Those of `offleash.eval.comparison.scopes.ROWS` that are printed as fractions."""
RATES = ("no_answer", "truncated", "timeout", "error")
"""Those of `offleash.eval.comparison.scopes.ROWS` that are printed as percentages."""


def share(value: float) -> str:
    """.893, -.107, 1.000."""
    if not math.isfinite(value):
        return _special(value)
    text = f"{value:.3f}"
    if float(text) == 0:
        return ".000"
    return text.replace("0.", ".", 1) if abs(float(text)) < 1 else text


def number(value: float, digits: int = 3) -> str:
    """Rounded to `digits` significant digits; integers from a thousand on."""
    if not math.isfinite(value):
        return _special(value)
    if abs(value) >= 1000 or value == 0:
        return f"{value + 0:,.0f}"  # not "-0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(decimals, 6)}f}"


def count(value: float) -> str:
    """1,234; one decimal where it is not whole, as expected counts are."""
    if math.isnan(value):
        return DASH
    return f"{value:,.0f}" if abs(value - round(value)) < 1e-6 else f"{value:,.1f}"


def expectation(value: float) -> str:
    """An expected count: below a thousandth it hangs on the tail of a fit, and its digits say nothing."""
    return "<0.001" if 0 < value < 0.001 else number(value)


def percent(value: float) -> str:
    return f"{100 * value:.2f}%" if math.isfinite(value) else _special(value)


def estimate(e: Estimate, write: Callable[[float], str] = share) -> str:
    """value [low, high]."""
    if math.isnan(e.value) or math.isnan(e.low):
        return write(e.value)
    return f"{write(e.value)} [{write(e.low)}, {write(e.high)}]"


def row_cell(key: str, e: Estimate, interval: bool = True) -> str:
    """A number of `offleash.eval.comparison.scopes.ROWS`."""
    write: Callable[[float], str] = share if key in FRACTIONS else percent if key in RATES else number
    return estimate(e, write) if interval else write(e.value)


def span(*counts: int) -> str:
    """64, or 8–64."""
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def p_value(p: float) -> str:
    if math.isnan(p):
        return DASH
    return "<.001" if p < 0.001 else share(p)


def p_words(p: float) -> str:
    return "p unknown" if math.isnan(p) else "p < .001" if p < 0.001 else f"p = {share(p)}"


def _special(value: float) -> str:
    return DASH if math.isnan(value) else "∞" if value > 0 else "-∞"
