"""The one function that prints.

A line may hold text of models, servers, files and folder names. Control characters (escape sequences, NUL, direction
overrides, zero-width joiners, private use) are shown as their code in brackets, so that no text can recolor a terminal,
set its title, write its clipboard or reorder a line. Passwords in URLs and other secrets are hidden.
"""

import sys
import unicodedata

from offleash.eval.secrets import hide

_CONTROL = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def visible(text: str) -> str:
    """The text with every control character except line breaks and tabs as its code: `⟨U+202E⟩`."""
    text = text.replace("\r\n", "\n")
    return "".join(f"⟨U+{ord(c):04X}⟩" if c not in "\n\t" and unicodedata.category(c) in _CONTROL else c for c in text)


def say(text: str, *, error: bool = False) -> None:
    """Print to standard output, or to standard error; above a progress bar if one is shown."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)  # no bar without the module
    stream = sys.stderr if error else sys.stdout
    if tqdm is None:
        print(visible(hide(text)), file=stream)
    else:
        tqdm.write(visible(hide(text)), file=stream)
    stream.flush()
