"""Each route, asked by somebody with each role, over HTTP: it is refused by name, or it is not."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from lsmq.messages import message_id
from lsmq_node.api.access import ACCESS
from lsmq_node.api.routing import ApiOperation
from support.node_process import NodeProcess
from support.waiting import eventually

from .calls import TIMEOUT_S
from .test_rights import BODIES, ROUTES, Asking, Realm, path_of

#: As docs/security.md has it: by kind, the actions of each role.
EVERYTHING: Final = {"describe", "read", "write", "create", "alter", "delete"}
ROLES: Final[dict[str, dict[str, set[str]]]] = {
    "admin": dict.fromkeys(("topic", "group", "producer-group", "cluster", "rights"), EVERYTHING),
    "producer": {"topic": {"describe", "write"}, "producer-group": {"describe", "write"}},
    "consumer": {"topic": {"describe", "read"}, "group": {"describe", "read"}},
    "monitor": {kind: {"describe"} for kind in ("topic", "group", "producer-group", "cluster")},
    "backup": {
        "topic": {"describe", "read"},
        "group": {"describe", "read"},
        "producer-group": {"describe"},
        "cluster": {"describe"},
        "rights": {"describe"},
    },
    "tenant": dict.fromkeys(("topic", "group", "producer-group"), EVERYTHING),
}
OWN: Final = "acme."
#: What the others ask for, or by, is gone when it is done.
LAST: Final = {"deleteTopic", "signOut", "revokeTokens", "revokeRights"}
#: What names its topics in the body alone, and refuses each for itself: see ``test_rights``.
IN_THE_BODY: Final = {"sendBatches"}


@pytest.fixture
def realm(make_node: Callable[..., NodeProcess]) -> Iterator[Realm]:
    node = make_node(auth="token").start()
    eventually((node.data / "admin.token").exists, "the first token is written")
    yield Realm(node)


def asked(api: Asking, route: ApiOperation, prefix: str, topic_id: int) -> tuple[int, str, str]:
    """Status, code and the right that is missing; topics and groups are called ``t`` and ``g`` behind the prefix."""
    path = path_of(route)
    for part in ("topics/t", "groups/g", "producer-groups/g"):
        path = path.replace(f"/{part}", f"/{part.replace('/', f'/{prefix}')}", 1)
    path = path.replace("topic=t", f"topic={prefix}t").replace(message_id(1, 0, 0), message_id(topic_id, 0, 0))
    body = BODIES.get(route.operation, {} if route.request is not None else None)
    sent = None if body is None else json.dumps(body).replace('"t"', f'"{prefix}t"')
    connection = http.client.HTTPConnection(api.host, api.port, timeout=TIMEOUT_S)
    try:
        connection.request(route.method, path, sent, api.own)
        answer = connection.getresponse()
        if route.is_stream and answer.status == 200:
            return 200, "", ""  # It is held until somebody goes.
        found = json.loads(answer.read() or b"{}") if answer.status >= 400 else {}
    finally:
        connection.close()
    error = found.get("error", {})
    return answer.status, error.get("code", ""), error.get("right", "")


@pytest.mark.parametrize("role", ROLES)
def test_a_role_does_what_the_page_says_and_nothing_else(realm: Realm, role: str) -> None:
    prefix = OWN if role == "tenant" else ""
    made = realm.admin.create(f"{prefix}t", 2)
    routes = sorted(ROUTES, key=lambda route: route.operation in LAST)
    done = refused = 0
    _, somebody = realm.somebody((role, prefix))
    for route in routes:
        access = ACCESS[route.operation]
        may = all(need.action in ROLES[role].get(need.kind, ()) for need in access.needs)
        status, code, right = asked(somebody, route, prefix, made["id"])
        if may:
            assert status not in (401, 403) and status != 500, (route.operation, status, code)
            done += 1
        elif route.operation in IN_THE_BODY:
            refused += 1
        else:
            assert (status, code) == (403, "forbidden"), (route.operation, status, code)
            lacks = {f"{need.action} {need.kind}" for need in access.needs}
            assert any(right.startswith(each) for each in lacks), (route.operation, right)
            refused += 1
    assert done + refused == len(ROUTES) > 100
    assert (refused == 0) == (role == "admin") and done > 10


def test_a_tenant_does_nothing_to_what_is_not_its_own(realm: Realm) -> None:
    other = realm.admin.create("t", 2)
    _, tenant = realm.somebody(("tenant", OWN))
    for route in ROUTES:
        if ACCESS[route.operation].needs and route.operation not in IN_THE_BODY:
            status, code, _ = asked(tenant, route, "", other["id"])
            assert (status, code) == (403, "forbidden"), (route.operation, status, code)
    assert realm.admin.get("/v1/topics/t").json()["id"] == other["id"]
