"""The settings of a node's port for clients: where it listens, how it speaks, and who its clients are."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lsmq_coordinator.tls import ClientAuth
from lsmq_node.choices import Auth, CertificateName
from lsmq_node.data_config import DataConfig
from lsmq_node.settings import MIB, InvalidConfig, setting
from lsmq_node.trusted_proxies import TrustedProxies


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPortConfig(DataConfig):
    """A part of :class:`lsmq_node.config.NodeConfig`, which checks what must hold between settings."""

    host: str = setting(
        "127.0.0.1",
        "Address to listen on for clients. `0.0.0.0` is every IPv4 interface.",
        hazard="Beyond the loopback a node starts only with `auth`, or with `insecure`.",
    )
    port: int = setting(7600, "Port to listen on; 0 takes any free one.", range=(0, 65_535))
    admin_port: int | None = setting(
        None,
        "A port of its own for administration; 0 takes any free one. It answers everything, and `port` no longer what "
        "administers the cluster, tokens, roles, grants or limits "
        "([security](security.md#a-port-for-administration)). Those of other `processes` are 10, 20, ... above.",
        range=(0, 65_535),
        hazard="Set it on all nodes: what one of them refuses another one does.",
    )
    admin_host: str = setting(
        "127.0.0.1",
        "Address to listen on with `admin_port`.",
        hazard="As of `host`.",
    )
    advertised_url: str | None = setting(
        None,
        "URL that clients reach this node by, when it is not `http://host:port` (`https://` with `tls_cert`).",
        hazard="Routes hold it: an address that clients cannot reach sends them nowhere.",
    )
    tls_cert: Path | None = setting(
        None,
        "PEM file with the certificate that clients are shown, and what leads to its authority. With it the port for "
        "clients speaks TLS 1.3, and nothing else. Read again when it changes.",
        hazard="Left out, all that clients say and hear can be read on the way.",
    )
    tls_key: Path | None = setting(None, "PEM file with its private key, readable by its owner alone.")
    tls_client_ca: Path | None = setting(
        None,
        "PEM file with the authorities whose certificates clients may show.",
        hazard="Whoever has a certificate of theirs is let in.",
    )
    tls_client_auth: ClientAuth | None = setting(
        None,
        "Whether clients show a certificate: `none` (not asked), `optional` (one that is shown must be right), "
        "`required`. Left out: `required` with `tls_client_ca`, else `none`.",
        hazard="With `required`, probes and metrics need a certificate as well.",
    )
    tls_ca: Path | None = setting(
        None,
        "PEM file with the authorities by which this node trusts the ports for clients of the other nodes, where it "
        "relays streams. Left out: the system's.",
    )
    auth: Auth = setting(
        Auth.NONE,
        "How clients are known: `none` asks nobody, `token` wants a bearer token of the cluster's own, and lets each "
        "do what it was granted ([security](security.md)). The same on all nodes.",
        hazard="`none`: whoever reaches the port may read, send and delete everything.",
    )
    insecure: bool = setting(
        False,
        "Start although others than this machine reach `host` and `auth` is `none`: they may do everything.",
        hazard="True: bind a network that you trust.",
    )
    audit_bytes: int = setting(
        64 * MIB,
        "With `auth`: refusals and administration are noted in `audit.jsonl` of the data directory, up to so much, the "
        "oldest half of which goes when it is full. 0: nowhere.",
        range=(0, 1024 * 1024 * MIB),
        hazard="Too small, and strangers who knock again and again push out what was noted before.",
    )
    browser_session_ms: int = setting(
        43_200_000,
        "With `auth`: after so long somebody who signed in with a browser must do so again, 12 hours "
        "([console](console.md#signing-in)).",
        range=(1_000, 2_592_000_000),
        hazard="Whoever has the browser's files is that somebody for so long.",
    )
    browser_session_idle_ms: int = setting(
        1_800_000,
        "And so if nobody used the page for so long, half an hour.",
        range=(1_000, 2_592_000_000),
        hazard="Whoever comes to a browser that was left alone is that somebody.",
    )
    allowed_hosts: str = setting(
        "",
        "Names that clients reach this node by, beside `advertised_url`, IP addresses, and names that nobody can own "
        "on the Internet (without a dot, `.local`, `.internal`); separated by commas, `.example.com` is all below it, "
        "`*` is any.",
        hazard="`*`: a web page can have a browser use this node by a name of its own.",
    )
    browser_origins: str = setting(
        "",
        "Origins of web pages that may use this node from a browser, separated by commas, such as "
        "`https://shop.example`; `*` is any. Pages that this node's own address serves may always.",
        hazard="A page of an allowed origin can read and acknowledge whatever the browser's machine can reach here.",
    )
    trusted_proxies: str = setting(
        "",
        "Addresses and networks of proxies in front of this node, separated by commas: which address they ask for is "
        "what they say in `X-Forwarded-For` ([security](security.md#behind-a-proxy)). Left out: nobody is believed.",
        hazard="Whoever asks from such an address, and is no proxy that sets the header, is from where he says.",
    )
    tls_principal: CertificateName = setting(
        CertificateName.NONE,
        "With `auth`: what of a client's verified certificate names the principal, for whoever sends no token: `none`, "
        "`common-name` (of the subject), or a name of the kind `dns`, `uri` or `email` ([security](security.md)).",
        hazard="Whoever has a certificate of `tls_client_ca` is who it says he is: let that authority know whom it "
        "gives which name.",
    )
    tls_principal_pattern: str = setting(
        "",
        "Regular expression for the whole of that name, whose one group is the principal, such as "
        "`spiffe://shop\\.example/(.+)`. Left out: the name itself.",
        hazard="Too wide, and different names are one principal.",
    )
    oidc_issuer: str | None = setting(
        None,
        "With `auth`: URL of an issuer of OpenID Connect, whose signed tokens (JWT) clients may send as well.",
        hazard="Whom the issuer names is believed to be that.",
    )
    oidc_audience: str | None = setting(
        None,
        "What the claim `aud` of its tokens must have: what the issuer calls this cluster. Needed with `oidc_issuer`.",
        hazard="One that other services share: what was given to them is good here.",
    )
    oidc_jwks_url: str | None = setting(
        None, "URL of the issuer's keys (JWKS). Left out: what `/.well-known/openid-configuration` of the issuer says."
    )
    oidc_ca: Path | None = setting(
        None,
        "PEM file with the authorities by which the issuer's server is believed. Left out: the system's. Read for each "
        "connection.",
    )
    oidc_principal_claim: str = setting(
        "sub",
        "Claim of its tokens that names the principal.",
        hazard="One that people choose or change themselves: then they choose who they are.",
    )
    oidc_principal_prefix: str = setting(
        "",
        "Put before that name, so that nobody whom the issuer names is somebody who has a token of the cluster's own.",
    )
    oidc_roles_claim: str = setting(
        "",
        "Claim with roles, beside those that were granted: a list of `ROLE` or `ROLE:PREFIX`, or text with spaces "
        "between; a claim in a claim as `realm_access.roles`. Left out: none.",
        hazard="The issuer says who is `admin`.",
    )
    oidc_refresh_ms: int = setting(
        300_000,
        "How often the issuer's keys are asked for. Those that are known stay in use while it cannot be reached.",
        range=(1_000, 86_400_000),
        hazard="A key that the issuer has withdrawn is believed for so long.",
    )
    oidc_retry_ms: int = setting(
        10_000,
        "For a token of a key that is not known, the issuer is asked at most so often.",
        range=(100, 3_600_000),
        hazard="Too short, and whoever sends such tokens has the issuer asked all the time.",
    )
    slow_request_ms: int = setting(
        1_000,
        "A request that takes longer is logged as `slow_request`, with where its time went; what it is held for until "
        "there are messages does not count. At most ten lines a second. 0: none is.",
        range=(0, 3_600_000),
        hazard="Too short, and the log is full of them.",
    )
    trace_endpoint: str | None = setting(
        None,
        "URL of an OpenTelemetry collector that takes traces by OTLP over HTTP, such as "
        "`http://127.0.0.1:4318/v1/traces`; needs `lsmq[otel]` ([tracing](tracing.md)). Left out: nothing is traced.",
        hazard="Names of topics are told there, and no messages.",
    )
    trace_percent: int = setting(
        0,
        "Of requests that come without a trace, so many percent begin one. Those that come with one are traced where "
        "it says that it is sampled.",
        range=(0, 100),
        hazard="Time and traffic, for each request that is traced.",
    )

    @property
    def proxies(self) -> TrustedProxies:
        """Raises ``InvalidConfig``."""
        return TrustedProxies(self.trusted_proxies)

    @property
    def is_exposed(self) -> bool:
        """Whether others than this machine reach it, and are asked nothing."""
        return self.auth is Auth.NONE and not is_loopback(self.exposed_host)

    @property
    def exposed_host(self) -> str:
        """Of the addresses it listens on for clients one that others reach, where there is any."""
        is_second = self.admin_port is not None and is_loopback(self.host)
        return self.admin_host if is_second else self.host

    def check_exposure(self) -> None:
        """Raises :class:`InvalidConfig` for a node that would be open to a network without anybody having said so."""
        if self.is_exposed and not self.insecure:
            setting = "admin_host" if is_loopback(self.host) else "host"
            raise InvalidConfig(
                f"{setting} is {self.exposed_host}, so that others than this machine reach the node, and auth is "
                "'none': they may read, send and delete everything. Set auth = 'token' (--auth token, see "
                "docs/security.md); listen on 127.0.0.1; or, on a network that you trust, say insecure = true "
                "(--insecure)",
                setting=setting,
            )


def is_safe_url(url: str) -> bool:
    """Whether nobody on the way can put in another answer: it is asked by TLS, or on this machine alone."""
    try:
        parsed = urlsplit(url)
        host = parsed.hostname or ""
    except ValueError:
        return False
    return bool(host) and (parsed.scheme == "https" or (parsed.scheme == "http" and is_loopback(host)))


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_naming(config: ClientPortConfig) -> None:
    """Raises ``InvalidConfig`` for settings of who clients are that are wrong, or do not go together."""
    _ = config.proxies
    named = config.tls_principal is not CertificateName.NONE
    asked = [name for name, given in (("tls_principal", named), ("oidc_issuer", config.oidc_issuer)) if given]
    if asked and config.auth is Auth.NONE:
        raise InvalidConfig(
            f"{asked[0]} is set, and auth is 'none', which asks nobody: set auth = 'token'", setting="auth"
        )
    if named and config.tls_client_ca is None:
        raise InvalidConfig(
            f"tls_principal is {config.tls_principal.value!r}, and no certificate is asked for: set tls_client_ca",
            setting="tls_client_ca",
        )
    _check_pattern(config.tls_principal_pattern, named)
    if config.oidc_issuer is None:
        for name in ("oidc_audience", "oidc_jwks_url", "oidc_ca"):
            if getattr(config, name) is not None:
                raise InvalidConfig(f"{name} is set, and no issuer: set oidc_issuer", setting="oidc_issuer")
        return
    if not config.oidc_audience:
        raise InvalidConfig(
            "oidc_issuer is set, and nothing says which of its tokens are for this cluster: set oidc_audience",
            setting="oidc_audience",
        )
    for name, url in (("oidc_issuer", config.oidc_issuer), ("oidc_jwks_url", config.oidc_jwks_url)):
        if url is not None and not is_safe_url(url):
            raise InvalidConfig(
                f"{name} is {url!r}; it must begin with https://, since whoever can change its answers is everybody",
                setting=name,
            )
    if config.oidc_ca is not None and not config.oidc_ca.is_file():
        raise InvalidConfig(f"oidc_ca is {config.oidc_ca}, and there is no such file", setting="oidc_ca")


def _check_pattern(pattern: str, named: bool) -> None:
    if not pattern:
        return
    if not named:
        raise InvalidConfig(
            "tls_principal_pattern is set, and tls_principal does not say of which name: set it",
            setting="tls_principal",
        )
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise InvalidConfig(
            f"tls_principal_pattern is no regular expression: {error}", setting="tls_principal_pattern"
        ) from error
    if groups != 1:
        raise InvalidConfig(
            f"tls_principal_pattern has {groups} groups; it must have one, the principal: use (?:...) for others",
            setting="tls_principal_pattern",
        )
