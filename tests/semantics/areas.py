"""All areas, by the word that steps of plans name them with."""

from __future__ import annotations

from collections.abc import Mapping

from .area import Area
from .later import Later
from .leaving import Eaten, Moved
from .log import Log
from .named import Named
from .sized import Sized
from .work import Doomed, Shared, Urgent

AREAS: Mapping[str, type[Area]] = {
    area.__name__.lower(): area for area in (Doomed, Eaten, Later, Log, Moved, Named, Shared, Sized, Urgent)
}
