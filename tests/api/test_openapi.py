"""The OpenAPI document: it is valid, it is the router, and answers are what it says."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lsmq.errors import InvalidRequest
from lsmq_node.api.app import make_app, route_table
from lsmq_node.api.schema import check
from lsmq_node.config import NodeConfig
from lsmq_node.node import running_node
from support.node_process import NodeProcess

from .calls import Api

METHODS = ("get", "put", "post", "patch", "delete")
#: Streams and batches have tests of their own.
NOT_JSON = {"sendBatch", "sendBatches", "readSnapshotFile", "push", "acknowledgePush"}


@pytest.fixture(scope="module")
def served(api: Api) -> dict[str, Any]:
    found: dict[str, Any] = api.get("/v1/openapi.json").json()
    return found


@pytest.fixture(scope="module")
def document(served: dict[str, Any]) -> dict[str, Any]:
    """With what has a name in the places that refer to it."""
    found: dict[str, Any] = resolved(served, served)
    return found


def resolved(found: Any, served: dict[str, Any]) -> Any:
    if isinstance(found, list):
        return [resolved(item, served) for item in found]
    if not isinstance(found, dict):
        return found
    if "$ref" in found:
        assert found.keys() == {"$ref"}, "generators pass over what stands beside it"
        _, components, kind, name = found["$ref"].split("/")
        return resolved(served[components][kind][name], served)
    return {name: resolved(item, served) for name, item in found.items()}


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


@pytest.mark.part(2)
def test_the_document_is_valid_openapi(served: dict[str, Any]) -> None:
    import openapi_spec_validator  # It takes a second, of each process that collects tests.

    assert served["openapi"].startswith("3.1")
    openapi_spec_validator.validate(served)


def test_what_several_operations_have_in_common_has_a_name(served: dict[str, Any]) -> None:
    """Generators of clients make one type of it, and else one for each place."""
    places: dict[str, set[str]] = {}
    for _, _, operation in operations(served):
        for schema in schemas_in(operation):
            if schema.get("type") == "object" and schema.get("properties"):
                places.setdefault(json.dumps(schema, sort_keys=True), set()).add(operation["operationId"])
    assert [each for each in places.items() if len(each[1]) > 1] == []
    text = json.dumps(served)
    for kind in ("schemas", "parameters"):
        for name in served["components"][kind]:
            assert f'"#/components/{kind}/{name}"' in text, name


def test_headers_by_which_a_request_means_a_topic_are_said_where_they_count(
    api: Api, document: dict[str, Any], topic_name: str
) -> None:
    former = api.create(topic_name)["id"]
    api.call("DELETE", f"/v1/topics/{topic_name}", status=204)
    api.create(topic_name)
    looked_at = 0
    for method, path, operation in operations(document):
        required = {each["name"] for each in operation["parameters"] if each["required"] and each["in"] == "query"}
        if method == "get" and ("{topic}" in path or "topic" in required) and "101" not in operation["responses"]:
            names = {"topic": topic_name, "queue": "0", "group": "g", "id": "0" * 32, "name": "s", "key": "k"}
            query = "&".join(f"{name}={names.get(name, 'x')}" for name in required)
            found = api.get(f"{path.format_map(names)}?{query}", None, headers={"Lsmq-Topic-Id": str(former)})
            said = "Lsmq-Topic-Id" in {each["name"] for each in operation["parameters"] if each["in"] == "header"}
            assert (found.status == 409 and found.code == "topic_replaced") == said, (operation["operationId"], found)
            looked_at += said
    assert looked_at > 10


def test_every_operation_says_what_headers_it_heeds(document: dict[str, Any]) -> None:
    for _, path, operation in operations(document):
        said = {each["name"] for each in operation["parameters"] if each["in"] == "header"}
        assert "Lsmq-Forward" in said
        assert ("Content-Encoding" in said) == ("requestBody" in operation)
        assert ("Lsmq-Fetch-Shards" in said) == path.endswith("/fetch")
        assert ("Sec-WebSocket-Protocol" in said) == path.endswith("/push")


def test_the_document_and_the_router_have_the_same_operations(document: dict[str, Any], tmp_path: Path) -> None:
    async def routes() -> set[tuple[str, str]]:
        async with running_node(NodeConfig(data=tmp_path)) as node:
            return {
                (route.method.lower(), route.resource.canonical)
                for route in make_app(node).router.routes()
                if route.resource is not None and route.method != "HEAD"  # what it answers is said of GET
            }

    assert {(method, path) for method, path, _ in operations(document)} == asyncio.run(routes())


def test_every_operation_is_described(document: dict[str, Any]) -> None:
    names = []
    for method, path, operation in operations(document):
        assert method in METHODS
        names.append(operation["operationId"])
        assert operation["summary"] and operation["tags"]
        assert "default" in operation["responses"]
        declared = {item["name"] for item in operation.get("parameters", []) if item["in"] == "path"}
        assert declared == set(re.findall(r"{(\w+)}", path))
        bodiless = (
            "drainNode",
            "pauseMoves",
            "declareQueue",
            "verifySnapshotFile",
            "signIn",
            "renewSession",
            "startBackup",
        )
        takes_a_body = method in ("put", "post", "patch") and operation["operationId"] not in bodiless
        assert ("requestBody" in operation) == takes_a_body
    assert len(names) == len(set(names))


def test_limits_of_the_node_stand_in_its_document() -> None:
    config = NodeConfig(data=Path("unused"), max_messages_per_request=17, max_wait_ms=5)
    table = {route.operation: route for route in route_table(config)}
    read = {parameter.name: parameter.schema for parameter in table["readMessages"].parameters}
    assert read["max"]["maximum"] == read["max"]["default"] == 17
    assert read["wait_ms"]["maximum"] == 5
    request = table["sendMessages"].request
    assert request is not None and request.schema is not None
    assert request.schema["properties"]["messages"]["maxItems"] == 17


CLUSTER_CHANGES = (
    ("pauseMoves", "POST", "moves/pause", None),
    ("resumeMoves", "DELETE", "moves/pause", None),
    ("unpinShard", "DELETE", "shards/0/pin", None),
    ("drainNode", "POST", "nodes/n1/drain", None),
    ("undrainNode", "DELETE", "nodes/n1/drain", None),
    ("removeNode", "DELETE", "nodes/n1", None),
    ("replaceVoter", "POST", "voters/n1/replace", {"by": "n2"}),
    ("keepVoter", "DELETE", "voters/n1/replace", None),
    ("moveReplicas", "PUT", "shards/0/replicas", {"replicas": ["n1"]}),
    ("cancelMove", "DELETE", "shards/0/replicas", None),
    ("reviveShard", "POST", "shards/0/revive", {"node": "n1", "accept_loss": True}),
    ("transferLeader", "PUT", "shards/0/leader", {"node": "n1"}),
)


#: What they answer where authentication is on is looked at in test_rights.py and test_browser_sessions.py.
RIGHTS_CHANGES = (
    ("createToken", "POST", "tokens", {"name": "p"}),
    ("rotateToken", "POST", "tokens/p/rotate", {}),
    ("revokeTokens", "DELETE", "tokens/p", None),
    ("putRole", "PUT", "roles/r", {"rights": []}),
    ("deleteRole", "DELETE", "roles/r", None),
    ("grantRights", "POST", "acl/p/grant", {}),
    ("revokeRights", "POST", "acl/p/revoke", {}),
    ("alterLimits", "PATCH", "limits/p", {}),
    ("removeLimits", "DELETE", "limits/p", None),
    ("signIn", "POST", "session", None),
    ("getSession", "GET", "session", None),
    ("renewSession", "POST", "session/renew", None),
    ("signOut", "DELETE", "session", None),
)


def test_every_answer_fits_the_document(
    api: Api, shared_node: NodeProcess, document: dict[str, Any], topic_name: str
) -> None:
    seen: set[str] = set()

    def fits(operation_id: str, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        answer = api.call(method, path, body, status=status)
        operation = next(item for _, _, item in operations(document) if item["operationId"] == operation_id)
        content = operation["responses"][str(status)].get("content")
        if content is None:
            assert answer.body == b""
        else:
            media_type = answer.headers["Content-Type"].partition(";")[0]
            if media_type == "application/json":
                check(answer.json(), content[media_type]["schema"], operation_id)
            else:
                assert media_type in content
        seen.add(operation_id)
        return answer.json() if answer.headers.get("Content-Type") == "application/json" else None

    topic = f"/v1/topics/{topic_name}"
    fits("createTopic", "PUT", topic, {"queues": 2}, 201)
    fits("createTopic", "PUT", topic, {"queues": 2}, 200)
    fits("growTopic", "PUT", f"{topic}/queues", {"queues": 3})
    fits("alterTopic", "PATCH", topic, {"retention_ms": None})
    fits("getTopicUsage", "GET", f"{topic}/usage")
    fits("trimTopic", "POST", f"{topic}/trim", {"before_ms": 1})
    fits("purgeTopic", "POST", f"{topic}/purge", {"queues": "2"})
    fits("listTopics", "GET", "/v1/topics")
    fits("getTopic", "GET", topic)
    message = {"queue": 0, "body": "x", "key": "k", "properties": {"a": "b"}}
    sent = fits("sendMessages", "POST", f"{topic}/messages", {"messages": [message, {"body_b64": "/w=="}]})
    later = fits("sendMessages", "POST", f"{topic}/messages", {"messages": [{**message, "delay_ms": 3_600_000}]})
    pending = f"{topic}/delayed/{later['results'][0]['id']}"
    fits("listDelayed", "GET", f"{topic}/delayed")
    fits("getDelayed", "GET", pending)
    moved = fits("rescheduleDelayed", "PUT", pending, {"delay_ms": 7_200_000})
    plan = {"cron": "@daily", "message": {"body": "x"}}
    fits("putSchedule", "PUT", f"{topic}/schedules/s", plan, 201)
    fits("putSchedule", "PUT", f"{topic}/schedules/s", plan, 200)
    fits("listSchedules", "GET", f"{topic}/schedules")
    fits("listAllSchedules", "GET", "/v1/schedules")
    fits("getSchedule", "GET", f"{topic}/schedules/s")
    fits("deleteSchedule", "DELETE", f"{topic}/schedules/s", None, 204)
    fits("cancelDelayed", "DELETE", f"{topic}/delayed/{moved['id']}")
    fits("readMessages", "GET", f"{topic}/queues/0/messages")
    fits("getMessage", "GET", f"/v1/messages/{sent['results'][0]['id']}")
    fits("findMessages", "GET", f"{topic}/messages?key=k&explain=1")
    fits("getLatest", "GET", f"{topic}/table/k")
    fits("getQueue", "GET", f"{topic}/queues/0?time_ms=0")
    fits("getOffsets", "GET", f"{topic}/offsets?time_ms=0")
    fits("fetchBatches", "POST", f"{topic}/fetch", {"queues": [0], "offsets": [0]})
    fits("commitOffsets", "POST", "/v1/groups/g/offsets", {"topic": topic_name, "queues": [0], "offsets": [1]})
    fits("previewReset", "GET", f"/v1/groups/g/reset?topic={topic_name}&to=earliest")
    fits("resetGroup", "POST", "/v1/groups/g/reset", {"topic": topic_name, "to": "earliest"})
    fits("getCommittedOffsets", "GET", f"/v1/groups/g/offsets?topic={topic_name}")
    group = f"/v1/groups/{topic_name}"
    fits("getCoordinator", "GET", f"{group}/coordinator")
    fits("listPushStreams", "GET", f"{group}/streams")
    fits("listTopicsOfGroup", "GET", "/v1/groups/g/topics")
    member = {"member": "m", "topics": [topic_name], "client": "a test"}
    joined = fits("heartbeat", "POST", f"{group}/heartbeat", member)
    taken = {"topic": topic_name, "queues": [[0, 3]], "member": "m", "epoch": joined["epoch"]}
    fits("fenceGroup", "POST", f"{group}/fence", taken)
    fits("getLag", "GET", f"{group}/lag?topic={topic_name}")
    fits("getLagHistory", "GET", f"{group}/lag/history?topic={topic_name}")
    fits("describeGroup", "GET", group)
    fits("listGroups", "GET", "/v1/groups")
    fits("heartbeat", "POST", f"{group}/heartbeat", {**member, "leave": True})
    fits("declareGroup", "PUT", group, {"mode": "clustered"})
    fits("deleteOffsets", "DELETE", f"{group}/offsets?shard=0", None, 204)
    fits("deleteGroup", "DELETE", group, None, 204)
    work = f"/v1/groups/{topic_name}-work"
    fits("configureWorkQueue", "PUT", f"{work}/work-queue", {"topic": topic_name, "retry_first_ms": 0})
    popped = fits("popMessages", "POST", f"{work}/pop", {"topic": topic_name, "max": 1})
    fits("listHeld", "GET", f"{work}/held?topic={topic_name}")
    receipts = {"topic": topic_name, "receipts": [popped["messages"][0]["receipt"], "?"]}
    fits("extendMessages", "POST", f"{work}/extend", receipts)
    fits("nackMessages", "POST", f"{work}/nack", receipts)
    fits("ackMessages", "POST", f"{work}/ack", receipts)
    fits("describeWorkQueue", "GET", f"{work}/work-queue?topic={topic_name}")
    fits("deleteMessages", "POST", f"{topic}/delete", {"queues": [0], "offsets": [0]})
    named = f"{topic}-named"
    fits("createTopic", "PUT", named, {"queues": "named"}, 201)
    fits("sendMessages", "POST", f"{named}/messages", {"messages": [{"queue": "a", "body": "x"}]})
    fits("readMessages", "GET", f"{named}/queues/a/messages")
    fits("getQueue", "GET", f"{named}/queues/a")
    fits("alterQueue", "PATCH", f"{named}/queues/a", {"retention_ms": 1_000, "retention_bytes": "unlimited"})
    fits("declareQueue", "PUT", f"{named}/queues/b", None, 201)
    fits("declareQueue", "PUT", f"{named}/queues/b", None, 200)
    fits("listQueues", "GET", f"{named}/queues?limit=1")
    fits("listTopQueues", "GET", f"{named}/top-queues?by=age")
    fits("trimQueue", "POST", f"{named}/queues/a/trim", {"before": 1})
    fits("deleteQueue", "DELETE", f"{named}/queues/a", None, 204)
    fits("fetchBatches", "POST", f"{named}/fetch", {"pattern": "**", "start": "latest"})
    until = fits("noteMoment", "POST", f"{named}/moments", {"shard": 0})
    fits("readArrivals", "POST", f"{named}/arrivals", {"shard": 0, "until": {"time_ms": until["time_ms"]}})
    producers = f"/v1/producer-groups/{topic_name}"
    fits("producerHeartbeat", "POST", f"{producers}/heartbeat", {"member": "m", "join": True})
    begin = {"member": "m", "messages": [{"topic": topic_name, "body": "x"}]}
    taken = fits("takeSequence", "POST", f"{producers}/sequences/s", {"member": "m"})
    part = {"sequence": "s", "sequence_epoch": taken["epoch"], "position": "1"}
    for number, end in ((1, ("commitTransaction", "commit")), (2, ("rollBackTransaction", "rollback"))):
        begun = fits("beginTransaction", "POST", f"{producers}/transactions", {**begin, **part, "number": number})
        one = f"{producers}/transactions/{begun['transaction']}"
        fits("addToTransaction", "POST", f"{one}/messages", {"part": 1, "messages": begin["messages"]})
        fits(end[0], "POST", f"{one}/{end[1]}", {})
        fits("getTransaction", "GET", one)
    fits("listTransactions", "GET", f"{producers}/transactions")
    fits("describeProducerGroup", "GET", producers)
    fits("listProducerGroups", "GET", "/v1/producer-groups")
    for name, method, path, body in CLUSTER_CHANGES:
        refused = api.call(method, f"/v1/cluster/{path}", body, status=400).json()
        assert "in no cluster" in refused["error"]["message"]
        seen.add(name)
    for name, path in (
        ("getCluster", "/v1/cluster"),
        ("getPlan", "/v1/cluster/plan"),
        ("getGrowth", "/v1/cluster/growth?shards=3"),
        ("healthz", "/healthz"),
        ("readyz", "/readyz"),
        ("status", "/v1/status"),
        ("openapi", "/v1/openapi.json"),
        ("metrics", "/metrics"),
        ("getConsole", "/console"),
        ("getConsoleFile", "/console/console.js"),
        ("getHistory", "/v1/history"),
        ("getBusiest", "/v1/busiest"),
    ):
        fits(name, "GET", path)
    fits("growShards", "PUT", "/v1/cluster/shards", {"shards": len(api.get("/v1/cluster").json()["shards"])})
    fits("spreadTopic", "POST", f"{topic}/spread", {"keys": "stay"})
    held = fits("beginSnapshot", "POST", "/v1/shards/0/snapshots", {"holder": topic_name}, 201)
    one = f"/v1/shards/0/snapshots/{held['id']}"
    fits("getSnapshot", "GET", one)
    fits("checksumSnapshotFile", "GET", f"{one}/files/{held['files'][0]['name']}/checksum?length=10")
    fits("verifySnapshotFile", "POST", f"{one}/files/{held['files'][0]['name']}/verify")
    fits("endSnapshot", "DELETE", one, None, 204)
    fits("takeProducer", "POST", f"{topic}/producers/5/take", {"shard": 0})
    fits("deleteTopic", "DELETE", topic, None, 204)
    fits("whoami", "GET", "/v1/whoami")
    for name, path in (
        ("listTokens", "tokens"),
        ("listRoles", "roles"),
        ("listGrants", "acl"),
        ("listLimits", "limits"),
    ):
        fits(name, "GET", f"/v1/{path}")
    fits("testRights", "POST", "/v1/acl/p/test", {"kind": "topic", "action": "read"})
    for name, method, path, body in RIGHTS_CHANGES:
        refused = api.call(method, f"/v1/{path}", body, status=409)
        assert refused.code == "authentication_off"
        seen.add(name)
    fits("listBackups", "GET", "/v1/backups")
    for method, path, name in (("POST", "", "startBackup"), ("DELETE", "/running", "stopBackup")):
        assert "backup_to" in api.call(method, f"/v1/backups{path}", status=400).json()["error"]["message"]
        seen.add(name)
    assert seen | NOT_JSON == {item["operationId"] for _, _, item in operations(document)}


def test_backups_of_a_node_fit_the_document(
    make_node: Callable[..., NodeProcess], document: dict[str, Any], tmp_path: Path
) -> None:
    api = Api(make_node(tmp_path / "data", backup_to=tmp_path / "backups", backup_bytes_per_s=65_536).start().url)
    api.create("t", 1)
    api.send("t", *({"queue": 0, "body": "x" * 20_000} for _ in range(30)))
    asked = (("startBackup", "POST", "", 202), ("startBackup", "POST", "", 200), ("listBackups", "GET", "", 200))
    for name, method, path, status in (*asked, ("stopBackup", "DELETE", "/running", 200)):
        operation = next(item for _, _, item in operations(document) if item["operationId"] == name)
        schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
        check(api.call(method, f"/v1/backups{path}", status=status).json(), schema, name)


def schemas_in(found: Any) -> Iterator[dict[str, Any]]:
    """All the objects below: schemas, and what they lie in."""
    if isinstance(found, list):
        for item in found:
            yield from schemas_in(item)
    if isinstance(found, dict):
        yield found
        for item in found.values():
            yield from schemas_in(item)


def test_a_schema_has_one_type_or_says_what_may_be_in_its_place(document: dict[str, Any]) -> None:
    """Generators of clients make a union of ``anyOf``; at several types other than null they fail. Nor do they take a
    value twice."""
    for schema in schemas_in(document):
        values = schema.get("enum", [])
        assert not isinstance(values, list) or len(values) == len(set(values))
        types = schema.get("type")
        assert not isinstance(types, list) or len(set(types) - {"null"}) == 1
        assert types is not None or not isinstance(schema.get("enum"), list), values


def test_the_document_says_how_a_token_is_shown(document: dict[str, Any]) -> None:
    scheme = document["components"]["securitySchemes"]["token"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    # Or a browser's session, or none, at a node that asks nobody.
    assert document["security"] == [{"token": []}, {"session": [], "antiForgery": []}, {}]


def test_an_answer_says_every_field_that_it_may_have(document: dict[str, Any]) -> None:
    """A client that is generated drops what is not said. Errors, and what a cluster agreed to, say more."""
    for _, _, operation in operations(document):
        answers = [answer for status, answer in operation["responses"].items() if status < "300"]
        for schema in schemas_in(answers):
            if schema.get("type") == "object" and schema.get("properties", {}).keys() - {"code", "version"}:
                is_error = "code" in schema["properties"]
                assert is_error or schema.get("additionalProperties") is False, operation["operationId"]


def test_a_popped_message_has_whatever_one_that_is_read_has(
    api: Api, document: dict[str, Any], topic_name: str
) -> None:
    topic = f"/v1/topics/{topic_name}"
    api.call("PUT", topic, {"queues": 1}, status=201)
    headers = [{"name": "trace", "value_b64": "/w=="}]
    sent = [{"key_b64": "/w==", "body_b64": "/w==", "headers": headers}, {"key": "k", "delete": True}]
    api.call("POST", f"{topic}/messages", {"messages": sent}, status=200)
    answer = api.call("POST", f"/v1/groups/{topic_name}/pop", {"topic": topic_name}, status=200).json()
    pop = document["paths"]["/v1/groups/{group}/pop"]["post"]["responses"]["200"]["content"]["application/json"]
    first, second = answer["messages"]
    assert first.keys() | second.keys() <= pop["schema"]["properties"]["messages"]["items"]["properties"].keys()
    assert (first["key_b64"], first["body_b64"], first["headers"]) == ("/w==", "/w==", headers)
    assert second["delete"]


def test_errors_fit_the_document(api: Api, document: dict[str, Any]) -> None:
    schema = document["components"]["schemas"]["Error"]
    for path in ("/v1/topics/nowhere", "/v1/nothing", "/v1/messages/0", "/v1/topics?x=1"):
        check(api.get(path, None).json(), schema, path)


VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    300,
    1.5,
    "",
    "x",
    "xxxx",
    [],
    [1, 2],
    [1, "x"],
    {},
    {"a": 1},
    {"a": "x", "b": 1},
    {"b": 300},
]

SCHEMAS: list[dict[str, Any]] = [
    {"type": "integer", "minimum": 0, "maximum": 255},
    {"type": ["integer", "null"]},
    {"type": "string", "minLength": 1, "maxLength": 3},
    {"type": "string", "pattern": "^x+$"},
    {"type": "number"},
    {"type": "boolean"},
    {"enum": ["x", 0]},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
    {"anyOf": [{"type": "integer", "minimum": 0}, {"enum": ["x"]}]},
    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    {"type": "object", "properties": {"b": {"type": "integer", "maximum": 255}}, "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "integer"}},
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_checker_agrees_with_json_schema(schema: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    for value in VALUES:
        # JSON Schema does not tell 0 from False in an enum; the rest has to agree.
        try:
            check(value, schema, "value")
            accepted = True
        except InvalidRequest:
            accepted = False
        assert accepted == validator.is_valid(value), (value, schema)
