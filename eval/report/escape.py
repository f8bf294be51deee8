r"""Text that a model wrote, or a file named, made harmless: for the terminal, Markdown, LaTeX and HTML.

`visible` comes first everywhere: characters that act rather than show (escape sequences, NUL, direction overrides, zero
width joiners, private use) become their code in brackets, so that no text can recolour a terminal or reorder a line.
"""

import html
import unicodedata

__all__ = ["html_text", "latex_text", "markdown_code", "markdown_text", "one_line", "visible"]

_ACTING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_MARKDOWN = "\\`*_{}[]()#+-.!|~<>&\"'$:@=^"
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
    "[": "{[}",  # at the start of a row it would be an argument of the \\ before it
    "]": "{]}",
    "*": "{*}",  # likewise
    "-": "{-}",  # -- is a dash
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


def visible(text: str) -> str:
    """The text with every character that acts, but line breaks and tabs, as its code: `⟨U+202E⟩`."""
    text = text.replace("\r\n", "\n")
    return "".join(
        f"⟨U+{ord(c):04X}⟩" if c not in "\n\t" and unicodedata.category(c) in _ACTING else c for c in text
    )


def one_line(text: str, limit: int = 80) -> str:
    """For a table's cell: no line breaks, cut short."""
    # Cut before the slow part: a completion may be megabytes.
    text = " ".join(visible(text[: 4 * limit]).split()) + (" " if len(text) > 4 * limit else "")
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def html_text(text: str) -> str:
    return html.escape(visible(text), quote=True)


def markdown_text(text: str) -> str:
    """Inline: every mark that Markdown or HTML could read is a character reference."""
    line = " ".join(visible(text).split())
    return "".join(f"&#{ord(c)};" if c in _MARKDOWN else c for c in line)


def markdown_code(text: str) -> str:
    """A block: indented, which no text can end."""
    return "\n".join(f"    {line}" for line in visible(text).split("\n"))


def latex_text(text: str) -> str:
    """Inline, in plain ASCII: what has no spelling there becomes its base letter or a question mark."""
    line = " ".join(visible(text).split())
    return "".join(_LATEX.get(c) or _ascii(c) for c in line)


def _ascii(character: str) -> str:
    if character.isascii():
        return character
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return "".join(_LATEX.get(c, c) for c in plain) or "?"
