"""Whom certificates and vouchers name. What a certificate has is as the standard library tells it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lsmq.errors import Unauthenticated
from lsmq_node.choices import CertificateName
from lsmq_node.rights import By, Proven
from lsmq_node.rights.evidence import named_in, proven_by_voucher, vouched

KEY, OTHER = b"k" * 32, b"o" * 32


def certificate(*subject: str, **alternatives: list[str]) -> dict[str, Any]:
    kinds = {"dns": "DNS", "uri": "URI", "email": "email"}
    return {
        "subject": tuple((("commonName", name),) for name in subject),
        "subjectAltName": tuple((kinds[kind], value) for kind, values in alternatives.items() for value in values),
        "notAfter": "Nov 24 00:00:00 2030 GMT",
    }


def test_a_certificate_names_somebody_by_what_is_configured_alone() -> None:
    both = certificate("alice", dns=["alice.example"], uri=["spiffe://shop.example/carol"], email=["bob@example"])
    for kind, name in (
        (CertificateName.COMMON_NAME, "alice"),
        (CertificateName.DNS, "alice.example"),
        (CertificateName.EMAIL, "bob@example"),
    ):
        assert named_in(both, kind, None) == Proven(name, 1_921_708_800_000, By.CERTIFICATE)
    pattern = re.compile("spiffe://shop[.]example/(.+)")
    assert named_in(both, CertificateName.URI, pattern).principal == "carol"
    with pytest.raises(Unauthenticated, match="no name of a principal"):
        named_in(both, CertificateName.URI, None)


@pytest.mark.parametrize(
    "found",
    [
        certificate(),
        certificate("alice", "bob"),
        certificate("admin@n1"),
        certificate("a b"),
        certificate(""),
        certificate("x" * 129),
        certificate("lsmq~a~1"),
        certificate(dns=["alice"]),
    ],
)
def test_a_certificate_that_names_nobody_or_several_is_refused(found: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated):
        named_in(found, CertificateName.COMMON_NAME, None)


def test_the_whole_of_a_name_must_match() -> None:
    pattern = re.compile("spiffe://shop[.]example/([a-z]+)")
    for name in ("spiffe://shop.example/eve/x", "xspiffe://shop.example/eve", "spiffe://shop.example/"):
        with pytest.raises(Unauthenticated):
            named_in(certificate(uri=[name]), CertificateName.URI, pattern)
    several = ["https://elsewhere.example/", "spiffe://shop.example/eve"]
    assert named_in(certificate(uri=several), CertificateName.URI, pattern).principal == "eve"


def test_a_voucher_is_good_for_a_while_as_it_was_written_and_by_any_key_of_the_cluster() -> None:
    proven = Proven("alice", 9_000_000, By.CERTIFICATE)
    voucher = vouched(proven, KEY, 1_000)
    assert proven_by_voucher(voucher, (OTHER, KEY), 2_000) == proven
    assert proven_by_voucher("lsmq_" + "0" * 64, (KEY,), 2_000) is None
    changed = [voucher.replace("alice", "admin"), voucher.replace("~9000000~", "~9900000~"), voucher[:-1] + "g"]
    for bad, keys, now_ms in (
        (voucher, (OTHER,), 2_000),
        (voucher, (), 2_000),
        (voucher, (KEY,), 301_000),
        *((each, (KEY,), 2_000) for each in changed[:2]),
    ):
        with pytest.raises(Unauthenticated):
            proven_by_voucher(bad, keys, now_ms)
    assert proven_by_voucher(changed[2], (KEY,), 2_000) is None, "it is none, and no token either"
