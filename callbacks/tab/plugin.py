"""TensorBoard's tab "Support": its routes. The page is `static/index.js`; the data come from `tab.runs` as JSON.

Relies on `TBPlugin`, `FrontendMetadata(es_module_path=...)` and `http_util.Respond` of TensorBoard 2.18 to 2.21, which
serves the module in an iframe of its own origin under `script-src 'self'` and compresses JSON.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import wrappers

from offleash.callbacks.metrics import verdict_of
from offleash.callbacks.tab.runs import MonitoredRun, RunNotFound, Runs, log_roots
from offleash.eval.errors import OffleashError

STATIC = Path(__file__).parent / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css"}

App = Callable[[dict[str, Any], Any], Any]


class SupportTab(base_plugin.TBPlugin):  # type: ignore[misc]
    plugin_name = "offleash_support"

    def __init__(self, context: base_plugin.TBContext) -> None:
        flags = context.flags
        self.runs = Runs(log_roots(context.logdir, getattr(flags, "logdir_spec", None)))

    def get_plugin_apps(self) -> dict[str, App]:
        return {
            **{f"/{file.name}": self._static(file) for file in STATIC.iterdir() if file.suffix in _TYPES},
            "/runs": self._json(lambda query: [_described(run) for run in self.runs.all().values()]),
            "/grid": self._json(lambda query: self._run(query).grid(query.get("level", "answer"))),
            "/cell": self._json(lambda query: self._run(query).cell(_integer(query, "step"), query.get("problem", ""))),
        }

    def is_active(self) -> bool:
        return bool(self.runs.all())

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Support")

    def _run(self, query: Any) -> MonitoredRun:
        return self.runs.get(query.get("run", ""))

    @staticmethod
    def _static(file: Path) -> App:
        @wrappers.Request.application  # type: ignore[untyped-decorator]
        def app(request: wrappers.Request) -> Any:
            return http_util.Respond(request, file.read_bytes(), _TYPES[file.suffix])

        return app  # type: ignore[no-any-return]

    @staticmethod
    def _json(answer: Callable[[Any], Any]) -> App:
        """A route: what was asked for, or an error in one line."""

        @wrappers.Request.application  # type: ignore[untyped-decorator]
        def app(request: wrappers.Request) -> Any:
            if request.method != "GET":
                return http_util.Respond(request, {"error": "GET only"}, "application/json", code=405)
            try:
                found, code = answer(request.args), 200
            except (RunNotFound, OffleashError) as error:
                found, code = {"error": str(error)}, 404
            return http_util.Respond(request, _dumped(found), "application/json", code=code)

        return app  # type: ignore[no-any-return]


def _described(run: MonitoredRun) -> dict[str, Any]:
    """A run as the page lists it: its settings, its metrics at every step, and the verdict in a word."""
    try:
        record = run.record()
    except RunNotFound as error:
        return {"name": run.name, "error": str(error)}
    steps = record["steps"]
    return {
        "name": run.name,
        "k": record["k"],
        "token_entropy": record["token_entropy"],
        "base": record["base"],
        "steps": {str(step): metrics for step, metrics in sorted(steps.items())},
        "words": {str(step): verdict_of(metrics) for step, metrics in sorted(steps.items())},
        "sampled": run.steps(),
    }


def _integer(query: Any, name: str) -> int:
    text = query.get(name, "")
    if not text.isdecimal():
        raise RunNotFound(f"{name} must be a number, got {text!r}")
    return int(text)


def _dumped(value: Any) -> str:
    """JSON in which undefined numbers are null."""
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
