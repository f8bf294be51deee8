"""The one function that prints.

A line may hold text of models, servers, files and folder names. Control characters (escape sequences, NUL, direction
overrides, zero-width joiners, private use) are shown as their code in brackets, so that no text can recolor a terminal,
set its title, write its clipboard or reorder a line. Passwords in URLs and other secrets are hidden.
"""

import os
import sys
import unicodedata
from collections.abc import Callable
from typing import TextIO

from offleash.eval.secrets import hide

_CONTROL = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def visible(text: str) -> str:
    """The text with every control character except line breaks and tabs as its code: `⟨U+202E⟩`."""
    text = text.replace("\r\n", "\n")
    return "".join(f"⟨U+{ord(c):04X}⟩" if c not in "\n\t" and unicodedata.category(c) in _CONTROL else c for c in text)


def say(text: str, *, error: bool = False, paint: Callable[[str], str] | None = None) -> None:
    """Print to standard output, or to standard error; above a progress bar if one is shown.

    `paint` adds color to what is printed, if that goes to a terminal that shows color.
    """
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)  # no bar without the module
    stream = sys.stderr if error else sys.stdout
    shown = visible(hide(text))
    if paint is not None and shows_color(stream):
        shown = paint(shown)
    if tqdm is None:
        print(shown, file=stream)
    else:
        tqdm.write(shown, file=stream)
    stream.flush()


def shows_color(stream: TextIO) -> bool:
    """A terminal, unless NO_COLOR (https://no-color.org) or TERM=dumb asks for none."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
