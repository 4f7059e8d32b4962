"""Errors of who asks and what he may, see :mod:`lsmq.errors`."""

from __future__ import annotations

from lsmq._error import LsmqError


class Unauthenticated(LsmqError):
    """The node wants to know who asks: there was no token, or one that is not good here, or is so no longer."""

    code = "unauthenticated"


class Forbidden(LsmqError):
    """Whoever asks is known, and may not do that; ``details`` name the ``right`` that is missing."""

    code = "forbidden"


class WrongPort(Forbidden):
    """Administration, asked of a port for clients by a node that has a port of its own for it."""

    code = "wrong_port"


class AntiForgeryFailed(LsmqError):
    """A request by a browser's session does not show that it comes from the node's own page."""

    code = "anti_forgery_failed"


class AuthenticationOff(LsmqError):
    """The node does not ask who its clients are, so there are no tokens and rights to speak of."""

    code = "authentication_off"


class UnknownPrincipal(LsmqError):
    """Nobody of that name has a token or a grant."""

    code = "unknown_principal"


class UnknownRole(LsmqError):
    """No such role."""

    code = "unknown_role"


class TooManyRights(LsmqError):
    """Tokens, roles and grants, or sessions of browsers, take all the room there is for them."""

    code = "too_many_rights"
