"""Ways to use a cluster beside the three of :mod:`..clients`: each with its clients, and what must hold of it.

A seed switches some of them on, so that a run stays short.
"""

from __future__ import annotations

from .awaited import Awaited
from .bounded import Bounded
from .compacted import Compacted
from .consumed import Consumed
from .dead import Dead
from .deduplicated import Deduplicated
from .delayed import Delayed
from .forgotten import Forgotten
from .moved import MovedOn
from .named import Named
from .pushed import Pushed
from .ring import Ring
from .scheduled import Scheduled
from .short_lived import ShortLived
from .together import Together
from .urgent import Urgent
from .use import Use

#: By name.
USES: dict[str, type[Use]] = {
    use.name: use
    for use in (
        Awaited,
        Bounded,
        Compacted,
        Consumed,
        Dead,
        Deduplicated,
        Delayed,
        Forgotten,
        MovedOn,
        Named,
        Pushed,
        Ring,
        Scheduled,
        ShortLived,
        Together,
        Urgent,
    )
}

__all__ = ["USES", "Use"]
