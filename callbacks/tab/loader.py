"""The entry point of TensorBoard's tab. It imports nothing heavy: an error here would end TensorBoard altogether.

TensorBoard calls `entry_point.load()` on every installed plugin, unguarded. What the tab needs is imported in `load`,
and if that fails TensorBoard starts without the tab and says why.
"""

import logging
from typing import Any

from tensorboard.plugins import base_plugin

_LOG = logging.getLogger("offleash")


class SupportTabLoader(base_plugin.TBLoader):
    """Makes the tab, or leaves it out."""

    def load(self, context: Any) -> Any:
        try:
            from offleash.callbacks.tab.plugin import SupportTab
        except ImportError as error:
            _LOG.warning("offleash: TensorBoard starts without the Support tab: %s", error)
            return None
        return SupportTab(context)
