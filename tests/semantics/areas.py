"""All areas, by the word that steps of plans name them with."""

from __future__ import annotations

from collections.abc import Mapping

from .area import Area
from .asked import Asked
from .keyed import Keyed
from .later import Later
from .leaving import Eaten, Moved
from .log import Log
from .members import Members
from .named import Named
from .sized import Sized
from .takeovers import Briefly, Copied, Outbox
from .tenants import Customers, Limited, Paced
from .transactions import Transactions
from .work import Doomed, Shared, Urgent

AREAS: Mapping[str, type[Area]] = {
    area.__name__.lower(): area
    for area in (
        Asked,
        Briefly,
        Copied,
        Customers,
        Doomed,
        Eaten,
        Keyed,
        Later,
        Limited,
        Log,
        Members,
        Moved,
        Named,
        Outbox,
        Paced,
        Shared,
        Sized,
        Transactions,
        Urgent,
    )
}
