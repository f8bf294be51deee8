"""TensorBoard's tab "Support": its routes. The page is `static/index.js`, with the map of `eval.browse`; the data come
from `tab.runs` as JSON.

Relies on `TBPlugin`, `FrontendMetadata(es_module_path=...)` and `http_util.Respond` of TensorBoard 2.18 to 2.21, which
serves the module in an iframe of its own origin under `script-src 'self'` and compresses JSON. What reads pools is
imported when the first route is asked: TensorBoard starts as fast as without the tab.
"""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import wrappers

from offleash.callbacks.tab.folders import RunFolders, log_roots
from offleash.eval.browse.embed import STATIC as SHARED
from offleash.eval.browse.embed import dumped
from offleash.eval.errors import OffleashError

if TYPE_CHECKING:
    from offleash.callbacks.tab.runs import MonitoredRun

STATIC = Path(__file__).parent / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css"}

App = Callable[[dict[str, Any], Any], Any]


class SupportTab(base_plugin.TBPlugin):
    plugin_name = "offleash_support"

    def __init__(self, context: base_plugin.TBContext) -> None:
        self.folders = RunFolders(log_roots(context.logdir, getattr(context.flags, "logdir_spec", None)))
        self._warmed = False

    def get_plugin_apps(self) -> dict[str, App]:
        return {
            **{
                f"/{file.name}": _static(file)
                for file in (*STATIC.iterdir(), *SHARED.iterdir())
                if file.suffix in _TYPES
            },
            "/runs": _json(
                lambda query: [self._described(name, folder) for name, folder in self.folders.all().items()]
            ),
            "/grid": _json(lambda query: self._run(query.get("run", "")).grid(query.get("level", "answer"))),
            "/noise": _json(lambda query: self._run(query.get("run", "")).noise()),
            "/cell": _json(self._cell),
        }

    def is_active(self) -> bool:
        """Asked when TensorBoard's page opens, and often afterwards: the first time, a thread begins to import."""
        active = bool(self.folders.all())
        if active and not self._warmed:
            self._warmed = True
            threading.Thread(target=_warm, daemon=True).start()
        return active

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Support")

    def _described(self, name: str, folder: Path) -> dict[str, Any]:
        return self._run(name).described() | {"events": self.folders.event_runs(folder)}

    def _cell(self, query: Any) -> dict[str, Any]:
        return self._run(query.get("run", "")).cell(query.get("step", ""), query.get("problem", ""))

    def _run(self, name: str) -> "MonitoredRun":
        from offleash.callbacks.tab.runs import RunNotFound, monitored

        if (folder := self.folders.all().get(name)) is None:
            raise RunNotFound(f"no run {name!r}")
        return monitored(name, folder)


def _warm() -> None:
    """Import what the routes need; if it cannot be, they say so."""
    with contextlib.suppress(ImportError):
        import pyarrow

        import offleash.callbacks.tab.runs  # noqa: F401

        pyarrow.array([0])  # its first array imports pandas, where that is installed: half a second


def _static(file: Path) -> App:
    @wrappers.Request.application
    def app(request: wrappers.Request) -> Any:
        return http_util.Respond(request, file.read_bytes(), _TYPES[file.suffix])

    return app


def _json(answer: Callable[[Any], Any]) -> App:
    """A route: what was asked for, or an error in one line."""

    @wrappers.Request.application
    def app(request: wrappers.Request) -> Any:
        if request.method != "GET":
            return http_util.Respond(request, {"error": "GET only"}, "application/json", code=405)
        try:
            found, code = answer(request.args), 200
        except (LookupError, OffleashError) as error:
            found, code = {"error": str(error)}, 404
        except (ImportError, OSError) as error:  # a broken install, an unreadable disk
            found, code = {"error": f"{type(error).__name__}: {error}"}, 500
        text = found if isinstance(found, bytes) else dumped(found)
        return http_util.Respond(request, text, "application/json", code=code)

    return app
