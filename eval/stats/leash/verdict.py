"""What a policy did to support, in one word, by a rule that the KL-optimal reweighting of the base itself cannot pass.

An NSCR above 0 is no expansion: reweighting the base towards its own correct answers lifts units above a floor as well.
So the policy is held against the leash line (`leash.tilt`) at equal pass@1. In this order, with the interval of NSCR
and that of NSCR less the line's (`leash.against`):

1. shrinks: all of NSCR's interval lies below 0;
2. expands: a unit outside the base's support is reached, NSCR is above 0, and all of the difference's interval lies
   above 0. Where the base's support is complete there is no such unit; where pass@1 fell below the base's the line is
   below 0, and to be above it is no expansion;
3. as good as reweighting: the difference's interval lies above -margin (.01);
4. keeps: NSCR's interval lies above -margin;
5. undecided: none of these. A loss is not shown, and neither is that there is none.
"""

import math
from typing import Literal

from offleash.eval.stats.leash.against import AgainstLine

Word = Literal["shrinks", "expands", "as good as reweighting", "keeps", "undecided"]
MARGIN = 0.01
"""How far below the line a policy may lie and still be called as good as reweighting, and below 0 to keep."""


def verdict(found: AgainstLine, margin: float = MARGIN) -> Word | None:
    """None where an interval is unknown, so that nothing can be said."""
    if math.isnan(found.nscr.high):
        return None
    if found.nscr.high < 0:
        return "shrinks"
    if math.isnan(found.above.low):
        return None
    if found.reached > 0 and found.nscr.value > 0 and found.above.low > 0:
        return "expands"
    if found.above.low >= -margin:
        return "as good as reweighting"
    return "keeps" if found.nscr.low >= -margin else "undecided"
