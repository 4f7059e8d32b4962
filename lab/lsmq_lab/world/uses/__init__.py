"""Ways to use a cluster beside the three of :mod:`..clients`: each with its clients, and what must hold of it.

A seed switches some of them on, so that a run stays short.
"""

from __future__ import annotations

from .aged import Aged
from .awaited import Awaited
from .bounded import Bounded
from .compacted import Compacted
from .consumed import Consumed
from .dead import Dead
from .deduplicated import Deduplicated
from .delayed import Delayed
from .fair import Fair
from .forgotten import Forgotten
from .found import FoundOnce
from .moved import MovedOn
from .named import Named
from .pushed import Pushed
from .requested import Requested
from .ring import Ring
from .scheduled import Scheduled
from .short_lived import ShortLived
from .taken import TakenOver
from .together import Together
from .urgent import Urgent
from .use import Use

#: By name.
USES: dict[str, type[Use]] = {
    use.name: use
    for use in (
        Aged,
        Awaited,
        Bounded,
        Compacted,
        Consumed,
        Dead,
        Deduplicated,
        Delayed,
        Fair,
        Forgotten,
        FoundOnce,
        MovedOn,
        Named,
        Pushed,
        Requested,
        Ring,
        Scheduled,
        ShortLived,
        TakenOver,
        Together,
        Urgent,
    )
}

__all__ = ["USES", "Use"]
