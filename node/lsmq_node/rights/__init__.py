"""Who asks, and what he may: principals, tokens, roles and grants. Decisions are pure code (:mod:`.model`,
:mod:`.book`); :mod:`.service` keeps them as all nodes agree on them. See docs/security.md."""

from .audit import Audit
from .book import RightsBook, RightsHolder
from .browser_sessions import BrowserSession, SessionCookie
from .evidence import By, Proven, ShownCredentials
from .model import EVERYTHING, Action, Binding, CheckedRight, ResourceKind
from .service import RightsService

__all__ = [
    "EVERYTHING",
    "Action",
    "Audit",
    "Binding",
    "RightsBook",
    "BrowserSession",
    "By",
    "RightsHolder",
    "ResourceKind",
    "Proven",
    "CheckedRight",
    "RightsService",
    "SessionCookie",
    "ShownCredentials",
]
