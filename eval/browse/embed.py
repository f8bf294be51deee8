"""The map and its cells in a page that carries its data: what TensorBoard's tab asks its server for, in the page.

Nothing is fetched from anywhere. Data are compressed JSON; scripts are allowed by their hash. Model text cannot end the
element that it stands in: `<` is escaped.
"""

import base64
import gzip
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

STATIC = Path(__file__).parent / "static"


class Embedded(NamedTuple):
    """What a page needs: put `style` into a style element, `data` into its body, and `script` behind that."""

    style: str
    data: str
    """A script element of type application/json."""
    script: str
    """For a script element of type module; leave it as it is, its hash is what allows it."""
    allowed: str
    """The source that allows the script, for `script-src` of the page's Content-Security-Policy."""


def embedded(
    data: Mapping[str, Any], start: str, modules: Sequence[Path] = (), files: Mapping[str, str] | None = None
) -> Embedded:
    """`data`: what `OFFLEASH_EMBEDDED(route, query)` answers, by `key`; `start`: the code that builds the page.

    `modules` are scripts beside `browse.js`, `files` scripts that hold an answer each: they call
    `OFFLEASH_CELL(key, answer)`.

    >>> made = embedded({key("grid", run="mine", level="answer"): {"rows": []}}, "browseTasks(document.body);")
    >>> made.allowed.startswith("'sha256-"), "</script>" in made.script
    (True, False)
    """
    texts = [path.read_text(encoding="utf-8") for path in (STATIC / "embedded.js", STATIC / "browse.js", *modules)]
    script = "\n".join([*map(_plain, texts), start, ""])
    packed = gzip.compress(dumped({"data": data, "files": files or {}}).encode(), mtime=0)
    carried = json.dumps(base64.b64encode(packed).decode())
    return Embedded(
        style=_dark_by_setting((STATIC / "browse.css").read_text(encoding="utf-8")),
        data=f'<script type="application/json" id="offleash-data">{carried}</script>',
        script=script,
        allowed=f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'",
    )


def key(route: str, run: str = "", level: str = "", step: str = "", problem: str = "") -> str:
    """Under which an answer is kept: `grid` of a run and level, `cell` of a run, step and problem."""
    return "\n".join((route, run, level, step, problem))


def inert(text: str) -> str:
    """JSON that cannot end a script element, whatever text is in it."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def dumped(value: Any) -> str:
    """JSON in which undefined numbers are null."""
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _dark_by_setting(css: str) -> str:
    """TensorBoard's tab is dark by a class, a page of its own by the reader's setting."""
    light, _, rest = css.partition(":root.dark {")
    dark, _, others = rest.partition("}")
    return f"{light}@media (prefers-color-scheme: dark) {{ :root {{{dark}}} }}{others}"


def _plain(module: str) -> str:
    """A module as part of a longer script: without imports and exports."""
    return re.sub(
        r"^export (?=(async )?(function|class|const) )", "", re.sub(r"^import .*\n", "", module, flags=re.M), flags=re.M
    )
