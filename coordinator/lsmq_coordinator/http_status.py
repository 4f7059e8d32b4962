"""With which HTTP status an error travels: the table of all that speak HTTP here, to clients and between nodes.

Errors know nothing of it. One that does not stand here travels as what it is a kind of.
"""

from __future__ import annotations

from typing import Final

from lsmq.errors import LsmqError

#: Codes of errors by status.
_CODES: Final[dict[int, tuple[str, ...]]] = {
    307: ("read_elsewhere",),
    400: ("invalid_request",),
    401: ("not_authenticated", "unauthenticated"),
    403: ("origin_not_allowed", "host_not_allowed", "forbidden", "wrong_port", "anti_forgery_failed"),
    404: (
        "unknown_path",
        "unknown_topic",
        "unknown_queue",
        "unknown_message",
        "unknown_group",
        "unknown_member",
        "unknown_receipt",
        "unknown_fetch_session",
        "unknown_stream",
        "unknown_producer_member",
        "unknown_transaction",
        "unknown_schedule",
        "unknown_principal",
        "unknown_role",
    ),
    405: ("method_not_allowed",),
    408: ("request_timeout", "slow_consumer"),
    409: (
        "topic_exists",
        "topic_replaced",
        "out_of_order_sequence",
        "stale_sequence",
        "sequence_reused",
        "producer_fenced",
        "unknown_producer",
        "stale_generation",
        "fenced_member",
        "group_mode_mismatch",
        "group_pattern_mismatch",
        "group_has_members",
        "too_many_members",
        "receipt_expired",
        "stream_replaced",
        "transaction_decided",
        "sequence_taken_over",
        "deliveries_ahead",
        "already_delivered",
        "node_runs",
        "authentication_off",
    ),
    410: ("snapshot_gone", "log_trimmed"),
    413: ("message_too_large", "request_too_large", "too_many_items", "too_many_messages", "transaction_too_large"),
    415: ("unsupported_media_type",),
    416: ("offset_out_of_range",),
    421: ("not_leader", "not_control_leader"),
    429: (
        "too_many_producers",
        "too_many_transactions",
        "too_many_filters",
        "too_many_groups",
        "too_many_topics",
        "too_many_delayed",
        "too_many_queues",
        "too_many_requests",
        "too_many_schedules",
        "too_many_rights",
    ),
    500: ("internal", "invalid_config"),
    503: ("unavailable", "connection_failed", "shard_stopped", "control_stopped", "too_many_connections"),
    504: ("timed_out",),
    507: ("disk_full", "documents_full", "quota_exceeded"),
}
_STATUSES: Final = {code: status for status, codes in _CODES.items() for code in codes}


def status_of(error: LsmqError | type[LsmqError]) -> int:
    """The HTTP status of an error, or of errors of a class."""
    kind = error if isinstance(error, type) else type(error)
    codes = (each.code for each in kind.__mro__ if issubclass(each, LsmqError))
    return next(_STATUSES[code] for code in codes if code in _STATUSES)
