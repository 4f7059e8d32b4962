"""Tokens, roles and grants, blocking."""

from __future__ import annotations

from lsmq import rights as asynchronous
from lsmq.sync._client import Client
from lsmq.sync._crossing import blocking


class Rights:
    """Blocking :class:`lsmq.Rights`."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._thread = client._thread
        self._async = asynchronous.Rights(client._async)

    whoami = blocking(asynchronous.Rights.whoami)
    tokens = blocking(asynchronous.Rights.tokens)
    create_token = blocking(asynchronous.Rights.create_token)
    rotate_token = blocking(asynchronous.Rights.rotate_token)
    revoke_tokens = blocking(asynchronous.Rights.revoke_tokens)
    roles = blocking(asynchronous.Rights.roles)
    put_role = blocking(asynchronous.Rights.put_role)
    delete_role = blocking(asynchronous.Rights.delete_role)
    grants = blocking(asynchronous.Rights.grants)
    grant = blocking(asynchronous.Rights.grant)
    revoke = blocking(asynchronous.Rights.revoke)
    test = blocking(asynchronous.Rights.test)
    limits = blocking(asynchronous.Rights.limits)
    alter_limits = blocking(asynchronous.Rights.alter_limits)
    remove_limits = blocking(asynchronous.Rights.remove_limits)
