"""Settings that are one of a few words, and a limit. What they mean stands in :mod:`lsmq_node.config`."""

from __future__ import annotations

from enum import Enum

#: Shards of a node that is in no cluster.
MAX_SHARDS_OF_ONE = 256


class LogFormat(Enum):
    """How log lines look: for people or for machines."""

    CONSOLE = "console"
    JSON = "json"


class Auth(Enum):
    """How a node knows who its clients are."""

    NONE = "none"  # it does not ask: whoever reaches it may do everything
    TOKEN = "token"  # by a token of the cluster's own, and by what else is configured


class CertificateName(Enum):
    """What of a client's certificate names the principal."""

    NONE = "none"  # nothing: a certificate lets in, and names nobody
    COMMON_NAME = "common-name"  # of the subject
    DNS = "dns"
    URI = "uri"
    EMAIL = "email"


class Compression(Enum):
    """How table blocks are stored."""

    NONE = "none"
    ZSTD = "zstd"


class Forward(Enum):
    """What becomes of a request for a shard that another node leads."""

    PASS = "pass"  # it is passed on to the leader, and the leader's answer passed back
    REDIRECT = "redirect"  # the client is sent to the leader (307)
    REFUSE = "refuse"  # the client is told the leader (421 ``not_leader``)
