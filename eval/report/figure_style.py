"""How every figure looks: one palette, one line and marker for each side, and the images that figures become.

Base and policy have the same color, line and marker everywhere, so that figures can also be read in print and by
color-blind readers. Figures are matplotlib `Figure` objects, without pyplot's global state; matplotlib is imported on
first use.
"""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from offleash.eval.report.sanitize import html_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER, INK, SOFT, RULE = "#ffffff", "#1c2127", "#5a6572", "#d9dee4"
BASE, POLICY, KEPT, OUT = "#b35900", "#1f5fa8", "#6f7c8a", "#e3e7eb"
DASHES = (0, (5, 3))
LINES: dict[str, dict[str, Any]] = {
    "base": {"color": BASE, "linestyle": DASHES, "marker": "o"},
    "policy": {"color": POLICY, "linestyle": "-", "marker": "s"},
    "leash": {"color": KEPT, "linestyle": ":", "marker": ""},
    "noise": {"color": BASE, "linestyle": (0, (1, 2)), "marker": ""},
    "neither": {"color": SOFT, "linestyle": DASHES, "marker": "o"},
}
"""Keyword arguments of `Axes.plot` for a curve of the base, of the policy, of the reweighted base, of what a second
sample of the base would show, and of none."""

_PAGE_COLORS = {
    PAPER: "--paper",
    INK: "--ink",
    SOFT: "--soft",
    RULE: "--rule",
    BASE: "--base",
    POLICY: "--policy",
    KEPT: "--kept",
    OUT: "--out",
}
"""Color -> the CSS variable of `templates/page.html`, which has values for light and dark pages."""
_SETTINGS = {
    "axes.axisbelow": True,
    "axes.edgecolor": SOFT,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.xmargin": 0.02,
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "legend.borderaxespad": 0.2,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "offleash",
    "text.color": INK,
    "text.parse_math": False,  # a label may hold $ signs that a model wrote
    "xtick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.color": SOFT,
    "ytick.labelcolor": INK,
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save in the house style. Also a decorator."""
    from matplotlib import rc_context

    with rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")  # the browser's fonts have it
        yield


@styled()
def image(figure: "Figure", kind: str) -> bytes:
    """`png` or `svg`, on white; the same bytes every time."""
    out = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    figure.savefig(out, format=kind, dpi=200, facecolor=PAPER, metadata=metadata)
    return out.getvalue()


@styled()
def inline_svg(figure: "Figure") -> str:
    """For an HTML page: transparent, in the page's own colors and font, described by the figure's label."""
    from matplotlib import rc_context

    out, label = io.StringIO(), str(figure.get_label())
    with rc_context({"svg.hashsalt": label}):  # ids differ between the figures of a page
        figure.savefig(out, format="svg", facecolor="none", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    # A style element would apply to the whole page, and HTML knows the namespaces.
    text = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' id="arm:(\d+)"', r' data-arm="\1"', text)  # several parts of one arm: no ids
    text = re.sub(r' xmlns(:xlink)?="[^"]*"| version="1.1"| id="[\w.]+_\d+"', "", text)
    text = re.sub(r"\s*\n\s*", " ", re.sub(r'style="[^"]*"', _page_style, text))
    return text.replace("<svg ", f'<svg role="img" aria-label="{html_text(label)}" ', 1)


def _page_style(attribute: re.Match[str]) -> str:
    style = re.sub(
        r"font-family: [^;\"]*(; )?", "", re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", attribute[0])
    )
    for color, name in _PAGE_COLORS.items():
        style = style.replace(color, f"var({name}, {color})")
    return style
