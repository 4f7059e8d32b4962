"""Clients that are known by the signed tokens of an issuer: which are good, whom they name, and until when."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import shutil
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.warnings import InsecureKeyLengthWarning

from lsmq.client import Client
from lsmq.rights import Rights
from lsmq_coordinator.authority import Authority
from lsmq_node.config import Auth, NodeConfig
from lsmq_node.settings import InvalidConfig
from support.issuer import AUDIENCE, Issuer
from support.node_process import NodeProcess
from support.waiting import eventually

from .test_rights import Asking, Realm


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Realm]:
    node = NodeProcess(
        tmp_path_factory.mktemp("signed") / "data", auth="token", oidc_roles_claim="realm.roles", **issuer.settings
    )
    node.start()
    try:
        eventually(lambda: (node.data / "admin.token").exists(), "the first token is written")
        yield Realm(node)
    finally:
        node.stop()


def shown(realm: Realm, token: str, status: int | None = 200) -> Any:
    answer = Asking(realm.node.url, token).get("/v1/whoami", status)
    return answer.json() if status == 200 else answer


def test_who_shows_a_signed_token_is_whom_it_names_and_has_what_was_granted(realm: Realm, issuer: Issuer) -> None:
    token = issuer.token("carol")
    found = shown(realm, token)
    assert (found["name"], found["by"], found["roles"]) == ("carol", "oidc", [])
    carol = Asking(realm.node.url, token)
    assert carol.call("PUT", "/v1/topics/carols", {"queues": 1}, status=403).code == "forbidden"
    realm.admin.call("POST", "/v1/acl/carol/grant", {"roles": [{"role": "tenant", "prefix": "carol"}]}, status=204)
    carol.create("carols", 1)
    audited = realm.node.data / "audit.jsonl"
    eventually(
        lambda: (
            audited.exists()
            and any(
                (line["principal"], line["by"], line["operation"]) == ("carol", "oidc", "createTopic")
                for line in map(json.loads, audited.read_text().splitlines())
            )
        ),
        "the audit log names her",
    )


def test_roles_of_the_issuer_count_and_what_it_calls_otherwise_gives_nothing(realm: Realm, issuer: Issuer) -> None:
    roles = ["producer:shop.", "offline_access", "tenant", 7, "no role", "tenant:dave."]
    token = issuer.token("dave", realm={"roles": roles})
    dave = Asking(realm.node.url, token)
    found = shown(realm, token)
    assert {"role": "tenant", "prefix": "dave."} in found["roles"]
    dave.create("dave.own", 1)
    realm.admin.create("shop.orders", 1)
    dave.send("shop.orders", {"body": "x", "queue": 0})
    dave.call("PUT", "/v1/topics/other", {"queues": 1}, status=403)
    Asking(realm.node.url, issuer.token("erin", realm={"roles": "monitor"})).get("/metrics")
    # The same somebody, without them, may nothing.
    Asking(realm.node.url, issuer.token("erin")).get("/metrics", 403)


def test_what_is_not_good_in_any_way_is_refused(realm: Realm, issuer: Issuer) -> None:
    def forged(header: dict[str, Any], claims: dict[str, Any], secret: bytes = b"") -> str:
        head, body = (base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in (header, claims))
        mac = hmac.new(secret, head + b"." + body, hashlib.sha256).digest() if secret else b""
        return b".".join((head, body, base64.urlsafe_b64encode(mac).rstrip(b"="))).decode()

    now = int(time.time())
    public = issuer.keys["first"].public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    good = issuer.claims("mallory")
    head, body, mac = issuer.token("mallory").split(".")
    without = [{name: value for name, value in good.items() if name != missing} for missing in ("exp", "iss", "aud")]
    stranger = rsa.generate_private_key(65_537, 2_048)
    curve = ec.generate_private_key(ec.SECP256R1())
    bad = {
        "algorithm none": forged({"alg": "none", "kid": "first"}, good),
        "no algorithm": forged({"kid": "first"}, good),
        "the public key as a secret": forged({"alg": "HS256", "kid": "first"}, good, pem),
        "another key under the same id": issuer.token(claims=good, key=stranger, headers={"kid": "first"}),
        "another kind of key": issuer.token(claims=good, key=curve, algorithm="ES256", headers={"kid": "first"}),
        "unknown key": issuer.token(claims=good, key=stranger, headers={"kid": "other"}),
        "key of its own": issuer.token(claims=good, key=stranger, headers={"jku": "http://127.0.0.1:1/", "kid": "x"}),
        "critical header": issuer.token(claims=good, headers={"crit": ["exp"]}),
        "expired": issuer.token("mallory", exp=now - 11),
        "not good yet": issuer.token("mallory", nbf=now + 60),
        "other audience": issuer.token("mallory", aud=["others"]),
        "other issuer": issuer.token("mallory", iss="https://elsewhere.example"),
        "endless": issuer.token("mallory", exp=1e400),
        "changed claims": f"{head}.{issuer.token('eve').split('.')[1]}.{mac}",
        "no signature": f"{head}.{body}.",
        "no name": issuer.token("", claims={**good, "sub": None}),
        "name of a node's administrator": issuer.token("admin@local"),
        "a name that is none": issuer.token("a b"),
        "not whole": f"{head}.{body}",
        "nested": f"{base64.urlsafe_b64encode(b'[' * 3_000).decode().rstrip('=')}.{body}.{mac}",
        **{f"without {number}": issuer.token(claims=each) for number, each in enumerate(without)},
    }
    for what, token in bad.items():
        answer = shown(realm, token, None)
        assert (answer.status, answer.code) == (401, "unauthenticated"), what
    assert shown(realm, issuer.token("mallory", aud=["others", AUDIENCE]))["name"] == "mallory"
    assert shown(realm, issuer.token("mallory", exp=now - 2))["name"] == "mallory", "clocks may differ a little"


@pytest.mark.parametrize("kind", ["ES256", "EdDSA"])
def test_a_new_key_is_asked_for_when_a_token_names_it(realm: Realm, issuer: Issuer, kind: str) -> None:
    issuer.add(kind, kind)
    eventually(
        lambda: shown(realm, issuer.token("carol", key=kind, algorithm=kind), None).status == 200, "the key is known"
    )
    # One that the issuer has withdrawn is good no longer once the keys have been asked for again.
    token = issuer.token("carol", key=kind, algorithm=kind)
    del issuer.keys[kind]
    eventually(lambda: shown(realm, token, None).status == 401, "the key is forgotten")


def test_a_key_that_is_too_small_is_none(realm: Realm, issuer: Issuer) -> None:
    issuer.add("small", "small")
    before = issuer.asked
    eventually(lambda: issuer.asked > before + 1, "the keys were asked for")
    with pytest.warns(InsecureKeyLengthWarning):
        token = issuer.token("carol", key="small")
    assert shown(realm, token, None).status == 401
    del issuer.keys["small"]


def test_many_tokens_of_unknown_keys_do_not_have_the_issuer_asked_each_time(issuer: Issuer, realm: Realm) -> None:
    stranger = rsa.generate_private_key(65_537, 2_048)
    before, began = issuer.asked, time.monotonic()
    for number in range(200):
        shown(realm, issuer.token("x", key=stranger, headers={"kid": f"k{number}"}), 401)
    # Once each oidc_retry_ms (100 ms), whatever is sent, and now and then by itself.
    assert issuer.asked - before <= 2 + 11 * (time.monotonic() - began)


def test_keys_stay_while_the_issuer_is_away_and_a_node_starts_without_it(
    make_node: Callable[..., NodeProcess],
) -> None:
    issuer = Issuer()
    with issuer:
        pass  # It has its address by now.
    node = make_node(auth="token", **issuer.settings).start()
    token = issuer.token("carol")
    asked = Asking(node.url, token)
    refused = asked.get("/v1/whoami", None)
    assert (refused.status, refused.code) == (503, "unavailable"), "nobody can tell"
    eventually((node.data / "admin.token").exists, "the first token is written")
    admin = Asking(node.url, (node.data / "admin.token").read_text().strip())
    assert any("issuer" in problem for problem in admin.get("/readyz").json()["warnings"])
    for stranger in (asked, Asking(node.url, None)):
        (told,) = stranger.get("/readyz").json()["warnings"]
        assert "issuer" not in told, "who cannot show who he is is told no more than that there is something"
    with issuer:
        eventually(lambda: asked.get("/v1/whoami", None).status == 200, "the keys are known")
    eventually(lambda: "warnings" in asked.get("/readyz").json(), "it is noticed that the issuer is away")
    for _ in range(5):
        assert asked.get("/v1/whoami").json()["name"] == "carol"
        assert Asking(node.url, issuer.token("other")).get("/v1/whoami").json()["name"] == "other"


def test_another_authority_of_the_issuer_s_server_is_believed_without_a_restart(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    issuer, believed = Issuer(), tmp_path / "ca.crt"

    def served_by(name: str) -> Authority:
        authority = Authority.create(tmp_path / name)
        issuer.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        issuer.tls.load_cert_chain(*authority.issue("issuer", ("127.0.0.1",)))
        return authority

    shutil.copy(served_by("old").cert, believed)
    with issuer:
        node = make_node(auth="token", oidc_ca=believed, **issuer.settings).start()
        anna = issuer.token("anna")
        eventually(lambda: Asking(node.url, anna).get("/v1/whoami", None).status == 200, "its keys are known")
    issuer.add("later")
    shutil.copy(served_by("new").cert, believed)
    with issuer:
        later = issuer.token("anna", key="later")
        eventually(lambda: Asking(node.url, later).get("/v1/whoami", None).status == 200, "its new key is known")


def test_a_held_stream_ends_with_the_token(realm: Realm, issuer: Issuer) -> None:
    realm.admin.create("streams", 1)
    realm.admin.call("POST", "/v1/acl/frank/grant", {"roles": [{"role": "consumer"}]}, status=204)
    # Ten seconds that clocks may differ are granted to it.
    token = issuer.token("frank", exp=int(time.time()) - 8)

    async def run() -> dict[str, Any]:
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session,
            session.ws_connect(
                f"{realm.node.url}/v1/groups/held/push?topic=streams", protocols=("lsmq.json",)
            ) as socket,
        ):
            assert (await socket.receive_json(timeout=20))["stream"]
            async for frame in socket:
                if "end" in (said := json.loads(frame.data)):
                    end: dict[str, Any] = said["end"]
                    return end
        raise AssertionError("the stream ended without a word")

    assert asyncio.run(run())["code"] == "unauthenticated"


def test_a_client_asks_its_function_for_the_token_each_time(realm: Realm, issuer: Issuer) -> None:
    asked: list[str] = []

    def token() -> str:
        asked.append(issuer.token(f"carol{len(asked)}"))
        return asked[-1]

    async def run() -> None:
        async with Client(realm.node.url, token=token) as client:
            first, second = [await Rights(client).whoami() for _ in range(2)]
            assert first.name != second.name and first.by == "oidc"

    asyncio.run(run())
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"oidc_issuer": "https://a.example", "oidc_audience": "a", "auth": Auth.NONE}, "auth is 'none'"),
        ({"oidc_issuer": "https://a.example"}, "set oidc_audience"),
        ({"oidc_issuer": "http://a.example", "oidc_audience": "a"}, "must begin with https://"),
        ({"oidc_issuer": "http://127.0.0.1.example", "oidc_audience": "a"}, "must begin with https://"),
        ({"oidc_issuer": "https://a", "oidc_audience": "a", "oidc_jwks_url": "http://b/keys"}, "must begin with https"),
        ({"oidc_issuer": "https://a", "oidc_audience": "a", "oidc_ca": Path("/none")}, "no such file"),
        ({"oidc_audience": "a"}, "set oidc_issuer"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=words):
        NodeConfig(data=tmp_path, **{"auth": Auth.TOKEN, **settings}).validate()
