"""Who asks, and what he may: principals, tokens, roles and grants. Decisions are pure code (:mod:`.model`,
:mod:`.book`); :mod:`.service` keeps them as all nodes agree on them. See docs/security.md."""

from .audit import Audit
from .book import Book, Holder
from .browser_sessions import BrowserSession, SessionCookie
from .evidence import By, Proven, Shown
from .model import EVERYTHING, Action, Binding, Kind, Right
from .service import RightsService

__all__ = [
    "EVERYTHING",
    "Action",
    "Audit",
    "Binding",
    "Book",
    "BrowserSession",
    "By",
    "Holder",
    "Kind",
    "Proven",
    "Right",
    "RightsService",
    "SessionCookie",
    "Shown",
]
