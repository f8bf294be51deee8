r"""Make untrusted text (of a model, a file name) harmless in the terminal, Markdown, LaTeX and HTML.

`visible` comes first everywhere: control characters (escape sequences, NUL, direction overrides, zero-width joiners,
private use) become their code in brackets, so that no text can recolor a terminal or reorder a line.
"""

import html
import re
import unicodedata

from offleash.eval.console import visible

_NUMBERS = re.compile(r"(?!.*\]\(|.*<[p/])[-–0-9.,%/∞ ()\[\]=p<]*")
_MINUS = re.compile(r"(?<![\w-])-(?=\.?\d)")
# A colon and a dot only where they could make a link, an at-sign where it could name somebody.
_MARKDOWN = re.compile(r"[\\`*_\[\]<>&|~!#$^]|:(?=\S)|\.(?=[^\W\d])|(?<!\w)@|^[-+=]")
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "–": "--",
    "−": "$-$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "∞": r"$\infty$",
    "ε": r"$\varepsilon$",
    "→": r"$\to$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "…": r"\ldots{}",
}


def one_line(text: str, limit: int = 80) -> str:
    """For a table cell: no line breaks, truncated."""
    # Truncate before the slow part: a completion may be megabytes.
    text = " ".join(visible(text[: 4 * limit]).split()) + (" " if len(text) > 4 * limit else "")
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def html_text(text: str) -> str:
    return html.escape(visible(text), quote=True)


def markdown_text(text: str) -> str:
    """Inline: every character with a meaning in Markdown or HTML becomes a character reference; numbers stay."""
    line = " ".join(visible(text).split())
    if _NUMBERS.fullmatch(line):
        return line
    return _MARKDOWN.sub(lambda found: f"&#{ord(found[0])};", line)


def markdown_code(text: str) -> str:
    """An indented block, which no text can close."""
    return "\n".join(f"    {line}" for line in visible(text).split("\n"))


def latex_text(text: str) -> str:
    """Inline, in plain ASCII: other characters become their base letter or a question mark."""
    line = _MINUS.sub("−", " ".join(visible(text).split()))
    # At the start of a row, [ and * would be arguments of the \\ before it.
    return "{}" * line.startswith(("[", "*")) + "".join(_LATEX.get(c) or _ascii(c) for c in line)


def _ascii(character: str) -> str:
    if character.isascii():
        return character
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return "".join(_LATEX.get(c, c) for c in plain) or "?"
