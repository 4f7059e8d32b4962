"""Who asks, and what he may: principals, tokens, roles and grants. Decisions are pure code (:mod:`.model`,
:mod:`.book`); :mod:`.service` keeps them as all nodes agree on them. See docs/security.md."""

from .audit import Audit
from .book import Book, Holder
from .evidence import By, Proven, Shown
from .model import Action, Binding, Kind, Right
from .service import RightsService

__all__ = ["Action", "Audit", "Binding", "Book", "By", "Holder", "Kind", "Proven", "Right", "RightsService", "Shown"]
