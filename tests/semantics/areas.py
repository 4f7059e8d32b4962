"""All areas, by the word that steps of plans name them with."""

from __future__ import annotations

from collections.abc import Mapping

from .ageing import Ageing
from .area import Area
from .asked import Asked
from .billed import Billed
from .consumed import Consumed
from .keyed import Keyed
from .later import Later
from .leaving import Eaten, Moved
from .log import Log
from .mailed import Mailed
from .members import Members
from .named import Named
from .quotas import Quotas
from .retained import Retained
from .scheduled import Scheduled
from .sized import Sized
from .subscribed import Subscribed
from .tables import Tables
from .takeovers import Briefly, Copied, Outbox
from .tenants import Customers, Limited, Paced
from .transactions import Transactions
from .weighed import Weighed
from .work import Doomed, Shared, Urgent

AREAS: Mapping[str, type[Area]] = {
    area.__name__.lower(): area
    for area in (
        Ageing,
        Asked,
        Billed,
        Briefly,
        Consumed,
        Copied,
        Customers,
        Doomed,
        Eaten,
        Keyed,
        Later,
        Limited,
        Log,
        Mailed,
        Members,
        Moved,
        Named,
        Outbox,
        Paced,
        Quotas,
        Retained,
        Scheduled,
        Shared,
        Sized,
        Subscribed,
        Tables,
        Transactions,
        Urgent,
        Weighed,
    )
}
