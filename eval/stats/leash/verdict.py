"""What a policy did to support, in one word, by a rule that the KL-optimal reweighting of the base itself cannot pass.

An NSCR above 0 is no expansion: reweighting the base towards its own correct answers lifts units above a floor as well.
So the policy is held against the leash line (`leash.tilt`) at equal pass@1. In this order, with the interval of NSCR
and that of NSCR less the line's (`leash.against`):

1. shrinks: all of NSCR's interval lies below 0;
2. expands: a unit outside the base's support is reached, and all of the difference's interval lies above 0. Where the
   base's support is complete there is no such unit;
3. as good as reweighting: the difference's interval lies above -margin (.01);
4. keeps: none of these. NSCR is not below 0 beyond its error, and not shown to be as high as the line's.
"""

import math
from typing import Literal

from offleash.eval.stats.leash.against import AgainstLine

Word = Literal["shrinks", "expands", "as good as reweighting", "keeps"]
MARGIN = 0.01
"""How far below the line a policy may lie and still be called as good as reweighting."""


def verdict(found: AgainstLine, margin: float = MARGIN) -> Word | None:
    """None where an interval is unknown, so that nothing can be said."""
    if math.isnan(found.nscr.high):
        return None
    if found.nscr.high < 0:
        return "shrinks"
    if math.isnan(found.above.low):
        return None
    if found.reached > 0 and found.above.low > 0:
        return "expands"
    return "as good as reweighting" if found.above.low >= -margin else "keeps"
