"""Sessions of browsers over HTTP: what a cookie stands for, when it ends, and which requests by it are refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from lsmq_node.api.app import route_table
from lsmq_node.api.browser_sessions import shown_cookie
from lsmq_node.api.origins import is_own_page
from lsmq_node.api.routing import ApiOperation
from lsmq_node.api.schema import check
from lsmq_node.config import NodeConfig
from lsmq_node.rights.sessions import SESSIONS_EACH, SIGN_INS_A_MINUTE
from support.issuer import Issuer
from support.node_process import NodeProcess
from support.waiting import eventually

from .calls import Answer, Api
from .test_rights import Asking, Realm, noted, path_of

ROUTES = route_table(NodeConfig(data=Path("unused")))
CHANGES = [route for route in ROUTES if route.method != "GET" or route.is_stream]
EVERYTHING = ("admin", "")
OTHER_PAGES = (
    {"Origin": "https://shop.example"},  # which may use the node, by a token
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
)


class Browser(Asking):
    """The node's own page in a browser that holds a cookie."""

    def __init__(self, url: str, signed_in: Answer) -> None:
        super().__init__(url, None)
        (self.morsel,) = SimpleCookie(signed_in.headers["Set-Cookie"]).values()
        self.said = signed_in.json()
        self.origin = {"Origin": f"http://{self.host}:{self.port}"}
        self.cookie = {"Cookie": f"{self.morsel.key}={self.morsel.value}"}
        self.anti_forgery = {"Lsmq-Anti-Forgery": self.said["anti_forgery"]}
        self.own = {"Content-Type": "application/json", **self.origin, **self.cookie, **self.anti_forgery}

    def without(self, *names: str, **others: str) -> Asking:
        """As it is, but for these headers."""
        other = Asking(f"http://{self.host}:{self.port}", None)
        other.own = {name: value for name, value in self.own.items() if name not in names}
        other.own |= {name.replace("_", "-"): value for name, value in others.items()}
        return other


def signed_in(asking: Asking) -> Browser:
    answer = asking.call("POST", "/v1/session", status=201)
    return Browser(f"http://{asking.host}:{asking.port}", answer)


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    data = tmp_path_factory.mktemp("sessions") / "data"
    node = NodeProcess(data, auth="token", browser_origins="https://shop.example")
    node.start()
    try:
        eventually(lambda: (node.data / "admin.token").exists(), "the first token is written")
        yield Realm(node)
    finally:
        node.stop()


def test_a_cookie_stands_for_the_token_and_no_script_or_other_page_has_it(realm: Realm) -> None:
    name, somebody = realm.somebody(("tenant", "mine."))
    browser = signed_in(somebody)
    assert browser.morsel.key == "lsmq-session"
    assert browser.morsel["httponly"] and browser.morsel["samesite"] == "Strict" and browser.morsel["path"] == "/"
    assert not browser.morsel["secure"] and not browser.morsel["domain"]
    assert 1_790 <= int(browser.morsel["max-age"]) <= 1_800
    found = browser.get("/v1/whoami").json()
    assert (found["name"], found["by"], found["expires_ms"]) == (name, "session", browser.said["expires_ms"])
    browser.create("mine.orders", 1)
    browser.send("mine.orders", {"body": "x", "queue": 0})
    assert browser.without("Origin", "Lsmq-Anti-Forgery").get("/v1/topics").json()["topics"]
    assert browser.call("PUT", "/v1/topics/yours", {"queues": 1}, status=403).code == "forbidden"


def test_where_the_page_came_by_tls_the_cookie_goes_by_nothing_else(realm: Realm) -> None:
    _, somebody = realm.somebody(EVERYTHING)
    host = f"{somebody.host}:{somebody.port}"
    page = {"Origin": f"https://{host}"}  # of a proxy, which speaks TLS for the node
    browser = Browser(realm.node.url, somebody.call("POST", "/v1/session", headers=page, status=201))
    assert browser.morsel.key == "__Host-lsmq-session"
    assert browser.morsel["secure"] and browser.morsel["path"] == "/" and not browser.morsel["domain"]
    browser.get("/v1/whoami")
    both = f"lsmq-session=another; {browser.cookie['Cookie']}"
    assert browser.without(Cookie=both).get("/v1/whoami").json()["by"] == "session", "it counts before the other"
    browser.without(Cookie="lsmq-session=another").get("/v1/whoami", 401)


@pytest.mark.parametrize("route", CHANGES, ids=lambda route: route.operation)
def test_nothing_is_changed_by_a_cookie_without_the_anti_forgery_token(realm: Realm, route: ApiOperation) -> None:
    browser = everything(realm)
    other = everything(realm, "another")
    path = path_of(route)
    for asking in (
        browser.without("Lsmq-Anti-Forgery"),
        browser.without(Lsmq_Anti_Forgery=""),
        browser.without(Lsmq_Anti_Forgery="0" * 64),
        browser.without(Lsmq_Anti_Forgery="\xe9"),
        browser.without(Lsmq_Anti_Forgery=other.said["anti_forgery"]),
        browser.without("Origin"),
    ):
        refused = asking.call(route.method, path, None)
        assert (refused.status, refused.code) == (403, "anti_forgery_failed"), refused.body
    for origin in (
        {"Origin": "https://shop.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        refused = browser.call(route.method, path, None, headers=origin)
        assert (refused.status, refused.code) == (403, "origin_not_allowed"), refused.body


_BROWSERS: dict[tuple[int, str], Browser] = {}


def everything(realm: Realm, which: str = "one") -> Browser:
    """Somebody who may do everything, signed in once."""
    key = id(realm), which
    if key not in _BROWSERS:
        _BROWSERS[key] = signed_in(realm.somebody(EVERYTHING)[1])
    return _BROWSERS[key]


def test_another_page_reads_nothing_by_a_cookie_and_is_never_told_that_it_may(realm: Realm) -> None:
    browser = everything(realm)
    for origin in (
        {"Origin": "https://shop.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        for path in ("/v1/session", "/v1/topics", "/metrics"):
            refused = browser.get(path, 403, headers=origin)
            assert refused.code == "origin_not_allowed"
            assert "Access-Control-Allow-Credentials" not in refused.headers
        assert browser.get("/healthz", headers=origin).status == 200
    evil = {"Origin": "https://evil.example"}
    assert browser.get("/v1/topics", 403, headers=evil).code == "origin_not_allowed"
    token = realm.admin.own
    allowed = Api(realm.node.url).get("/v1/topics", headers={**token, "Origin": "https://shop.example"})
    assert "Access-Control-Allow-Credentials" not in allowed.headers
    signing_in = realm.admin.call("POST", "/v1/session", headers={"Origin": "https://shop.example"}, status=403)
    assert signing_in.code == "origin_not_allowed" and "Set-Cookie" not in signing_in.headers
    assert browser.get("/v1/topics", headers={"Sec-Fetch-Site": "none"}).status == 200  # typed by somebody


def test_no_cookie_and_what_is_none_name_nobody(realm: Realm) -> None:
    browser = everything(realm)
    stranger = browser.without("Cookie")
    assert stranger.get("/v1/session", 401).code == "unauthenticated"
    assert stranger.call("POST", "/v1/session", status=401).code == "unauthenticated"
    secret, until, mac = str(browser.morsel.value).rsplit("~", 2)
    token = realm.admin.own["Authorization"].removeprefix("Bearer ")
    for value in (
        "",
        token,  # Whoever sets a cookie of his own making signs nobody in.
        f"{secret}~{int(until) + 1}~{mac}",
        f"{secret}~{until}~{'0' * 64}",
        f"lsmq_session~{'0' * 64}~{until}~{mac}",
        f"{secret}~{until}",
    ):
        forged = browser.without(Cookie=f"lsmq-session={value}")
        assert forged.get("/v1/whoami", 401).code == "unauthenticated", value
        assert forged.call("PUT", "/v1/topics/forged", {"queues": 1}, status=401)
        assert forged.get("/readyz").status == 200
    twice = f"{browser.cookie['Cookie']}; {browser.cookie['Cookie']}"
    assert "2 cookies" in browser.without(Cookie=twice).get("/v1/whoami", 401).error["message"]
    # A token that is sent counts, whatever cookie comes along.
    assert browser.call("GET", "/v1/whoami", headers=realm.admin.own).json()["by"] == "token"
    refused = realm.admin.get("/v1/session", 400)
    assert "no session" in refused.error["message"]


def test_only_a_token_begins_a_session(realm: Realm) -> None:
    browser = everything(realm)
    assert "stands for a token" in browser.call("POST", "/v1/session", status=400).error["message"]
    wrong = Asking(realm.node.url, "lsmq_" + "0" * 64).call("POST", "/v1/session", status=401)
    assert wrong.code == "unauthenticated" and "Set-Cookie" not in wrong.headers


def test_who_signs_out_is_out_at_once_and_elsewhere_still_in(realm: Realm) -> None:
    _, somebody = realm.somebody(EVERYTHING)
    here, elsewhere = signed_in(somebody), signed_in(somebody)
    gone = here.call("DELETE", "/v1/session", status=204)
    assert "Max-Age=0" in gone.headers["Set-Cookie"] and "lsmq-session=;" in gone.headers["Set-Cookie"].replace(
        '""', ""
    )
    assert here.get("/v1/whoami", 401).code == "unauthenticated"
    assert here.call("DELETE", "/v1/session", status=401)
    elsewhere.get("/v1/whoami"), somebody.get("/v1/whoami")


@pytest.mark.part(3)
def test_a_session_goes_on_when_it_is_renewed_and_the_cookie_before_does_not(
    make_node: Callable[..., NodeProcess],
) -> None:
    node = make_node(auth="token", browser_session_idle_ms=6_000, browser_session_ms=600_000).start()
    eventually((node.data / "admin.token").exists, "the first token is written")
    _, somebody = Realm(node).somebody()
    first = signed_in(somebody)
    assert first.said["idle_until_ms"] < first.said["expires_ms"]
    renewed = Browser(node.url, first.call("POST", "/v1/session/renew", status=200))
    latest = [renewed]

    def first_is_over() -> bool:
        latest.append(Browser(node.url, latest[-1].call("POST", "/v1/session/renew", status=200)))
        return first.get("/v1/whoami", None).status == 401

    eventually(first_is_over, "the first cookie ends, though the session goes on")
    assert latest[-1].said["expires_ms"] == first.said["expires_ms"]
    assert latest[-1].said["anti_forgery"] == first.said["anti_forgery"]
    eventually(lambda: latest[-1].get("/v1/whoami", None).status == 401, "whoever does nothing is out")


@pytest.mark.part(2)
def test_a_session_ends_when_it_was_to_and_with_its_token(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(auth="token", browser_session_ms=8_000).start()
    eventually((node.data / "admin.token").exists, "the first token is written")
    realm = Realm(node)
    _, somebody = realm.somebody(("consumer", ""))
    realm.admin.create("held", 1)
    browser = signed_in(somebody)
    assert browser.said["idle_until_ms"] == browser.said["expires_ms"]
    answers: list[Answer] = []
    path = "/v1/topics/held/queues/0/messages?offset=0&wait_ms=20000"
    waiting = threading.Thread(target=lambda: answers.append(browser.get(path, None)))
    waiting.start()
    eventually(lambda: realm.admin.get("/v1/status").json()["waiters"] > 0, "a request is held")

    def is_over() -> bool:
        return browser.call("POST", "/v1/session/renew").status == 401

    eventually(is_over, "it ends, however it is used")
    realm.admin.send("held", {"body": "secret", "queue": 0})
    waiting.join(30)
    assert [answer.code for answer in answers] == ["unauthenticated"]
    somebody.get("/v1/whoami")
    made = realm.admin.call("POST", "/v1/tokens", {"name": "short", "ttl_ms": 5_000}, status=201).json()
    short = signed_in(Asking(node.url, made["token"]))
    assert short.said["expires_ms"] == made["expires_ms"]


def test_who_is_revoked_is_out_and_a_request_that_is_held_for_him_is_given_nothing(realm: Realm) -> None:
    name, somebody = realm.somebody(("consumer", ""))
    browser = signed_in(somebody)
    realm.admin.create("held", 1)
    answers: list[Answer] = []
    path = "/v1/topics/held/queues/0/messages?offset=0&wait_ms=20000"
    waiting = threading.Thread(target=lambda: answers.append(browser.get(path, None)))
    waiting.start()
    eventually(lambda: realm.admin.get("/v1/status").json()["waiters"] > 0, "the request is held")
    realm.admin.call("DELETE", f"/v1/tokens/{name}", status=204)
    assert browser.get("/v1/whoami", 401).code == "unauthenticated"
    realm.admin.send("held", {"body": "secret", "queue": 0})
    waiting.join(30)
    assert [answer.code for answer in answers] == ["unauthenticated"]


def test_sessions_outlive_a_restart_and_the_node_keeps_no_secret_of_them(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(auth="token").start()
    eventually((node.data / "admin.token").exists, "the first token is written")
    _, somebody = Realm(node).somebody()
    stays, goes = signed_in(somebody), signed_in(somebody)
    goes.call("DELETE", "/v1/session", status=204)
    node.stop()
    secret = str(stays.morsel.value).split("~")[1].encode()
    for file in node.data.rglob("*"):
        assert not file.is_file() or secret not in file.read_bytes(), file
    assert secret.decode() not in node.log()
    node.start()
    for browser, status in ((stays, 200), (goes, 401)):
        url = Api(node.url)
        assert url.get("/v1/whoami", None, headers=browser.cookie).status == status


def test_a_principal_has_so_many_sessions_and_signs_in_so_often(realm: Realm) -> None:
    _, somebody = realm.somebody()
    browsers = [signed_in(somebody) for _ in range(SESSIONS_EACH + 2)]
    found = [browser.get("/v1/whoami", None).status for browser in browsers]
    assert found == [401, 401] + [200] * SESSIONS_EACH
    for _ in range(SIGN_INS_A_MINUTE - len(browsers)):
        signed_in(somebody)
    refused = somebody.call("POST", "/v1/session", status=429)
    assert refused.code == "too_many_requests" and int(refused.headers["Retry-After"]) <= 60
    signed_in(realm.somebody()[1])


def test_signing_in_and_out_and_what_was_refused_is_noted(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(auth="token").start()  # of its own: only so many refusals a second are noted
    eventually((node.data / "admin.token").exists, "the first token is written")
    realm = Realm(node)
    name, somebody = realm.somebody(("tenant", "noted."))
    browser = signed_in(somebody)
    browser.create("noted.here", 1)
    browser.without("Lsmq-Anti-Forgery").call("DELETE", "/v1/topics/noted.here", status=403)
    browser.call("DELETE", "/v1/session", status=204)
    browser.call("DELETE", "/v1/session", status=401)

    def own() -> list[tuple[Any, ...]]:
        return [
            (line["event"], line["by"], line["operation"], line["status"], line["code"])
            for line in noted(realm)
            if line.get("principal") == name
        ]

    eventually(lambda: len(own()) >= 4, "it is written")
    assert own() == [
        ("done", "token", "signIn", 201, None),
        ("done", "session", "createTopic", 201, None),
        ("refused", "session", "deleteTopic", 403, "anti_forgery_failed"),
        ("done", "session", "signOut", 204, None),
    ]
    text = (realm.node.data / "audit.jsonl").read_text()
    assert "lsmq_session" not in text and browser.said["anti_forgery"] not in text


def test_an_issuers_token_begins_a_session_with_its_roles(make_node: Callable[..., NodeProcess]) -> None:
    with Issuer() as issuer:
        node = make_node(auth="token", oidc_roles_claim="realm.roles", **issuer.settings).start()
        carol = Asking(node.url, issuer.token("carol", realm={"roles": ["tenant:carol."]}))
        eventually(lambda: carol.get("/v1/whoami", None).status == 200, "the issuer's keys are known")
        browser = signed_in(carol)
        found = browser.get("/v1/whoami").json()
        assert (found["name"], found["by"]) == ("carol", "session")
        browser.create("carol.own", 1)
        browser.call("PUT", "/v1/topics/other", {"queues": 1}, status=403)


def test_answers_fit_the_document(realm: Realm) -> None:
    table = {route.operation: route for route in ROUTES}
    _, somebody = realm.somebody()
    answers = {"signIn": somebody.call("POST", "/v1/session", status=201)}
    browser = Browser(realm.node.url, answers["signIn"])
    answers["getSession"] = browser.get("/v1/session")
    answers["renewSession"] = browser.call("POST", "/v1/session/renew", status=200)
    for operation, answer in answers.items():
        (content,) = table[operation].answers
        assert content.schema is not None
        check(answer.json(), content.schema, operation)
        assert answer.headers["Cache-Control"] == "no-store"
    assert answers["getSession"].json() == browser.said and "Set-Cookie" not in answers["getSession"].headers


def test_a_node_that_asks_nobody_has_no_sessions(api: Api) -> None:
    cookie = {"Cookie": f"lsmq-session=lsmq_session~{'0' * 64}~1~{'0' * 64}", "Origin": f"http://{api.host}:{api.port}"}
    assert api.get("/v1/whoami", headers=cookie).json()["name"] is None
    for method, path in (
        ("POST", "/v1/session"),
        ("GET", "/v1/session"),
        ("DELETE", "/v1/session"),
        ("POST", "/v1/session/renew"),
    ):
        assert api.call(method, path, headers=cookie, status=409).code == "authentication_off"


def test_a_node_with_tls_takes_no_cookie_that_a_page_without_it_can_set(tmp_path: Path) -> None:
    value = f"lsmq_session~{'0' * 64}~1~{'0' * 64}"
    tls = NodeConfig(data=tmp_path, tls_cert=tmp_path / "a.crt", tls_key=tmp_path / "a.key")
    request = make_mocked_request("GET", "/", {"Host": "n1:7600", "Cookie": f"lsmq-session={value}; a=b"})
    assert shown_cookie(request, tls) is None and shown_cookie(request, NodeConfig(data=tmp_path)) == value
    own = make_mocked_request("GET", "/", {"Host": "n1:7600", "Cookie": f"__Host-lsmq-session={value}"})
    assert shown_cookie(own, tls) == value
    assert is_own_page(own, "https://n1:7600", tls) and not is_own_page(own, "http://n1:7600", tls)
