"""The routes of producer groups and transactions; what they do is in :mod:`.transactions`."""

from __future__ import annotations

from typing import Any

from lsmq.errors import (
    DocumentsFull,
    MessageTooLarge,
    SequenceTakenOver,
    TooManyMembers,
    TooManyTransactions,
    TransactionDecided,
    TransactionTooLarge,
    UnknownProducerMember,
    UnknownQueue,
    UnknownTopic,
    UnknownTransaction,
)
from lsmq_node.config import NodeConfig
from lsmq_node.transactions import State

from . import transaction_schemas as schemas
from . import transactions
from .pages import PAGE
from .routing import Content, Parameter, Route, path_parameters


def routes(config: NodeConfig) -> tuple[Route, ...]:
    """The routes of this module."""
    group = path_parameters("group")
    transaction = Parameter("transaction", "path", schemas.TRANSACTION_ID, "Id of the transaction.")
    sequence = Parameter("sequence", "path", schemas.NAME, "Name of the sequence.")
    states = {"enum": [*(state.value for state in State), "undelivered"]}
    state = Parameter("state", "query", states, "Only these; `undelivered`: committed, and not in all their shards.")
    base, one = "/v1/producer-groups/{group}", "/v1/producer-groups/{group}/transactions/{transaction}"
    decided = {200: Content("Decided, durably; `delivered` says whether consumers see all of it.", schemas.TRANSACTION)}
    stored = {200: Content("Stored, durably, and not to be seen.", schemas.TRANSACTION)}
    known = {200: Content("As its coordinator knows it.", schemas.TRANSACTION)}
    message_errors = (UnknownTopic, UnknownQueue, MessageTooLarge, TransactionTooLarge, DocumentsFull)
    here = "Only at the group's coordinator (`GET /v1/groups/{group}/coordinator`)."

    def route(method: str, path: str, operation: str, summary: str, handler: Any, responses: Any, **rest: Any) -> Route:
        return Route(method, path, operation, "transactions", summary, handler, responses, **rest)

    return (
        route(
            "GET",
            "/v1/producer-groups",
            "listProducerGroups",
            "Producer groups that this node coordinates",
            transactions.list_groups,
            {200: Content("Those with members or unfinished transactions.", schemas.GROUPS)},
            parameters=PAGE,
        ),
        route(
            "GET",
            base,
            "describeProducerGroup",
            "Members and sequences of a producer group",
            transactions.describe_group,
            {200: Content("As its coordinator knows it.", schemas.GROUP)},
            description=here,
            parameters=group,
        ),
        route(
            "POST",
            f"{base}/heartbeat",
            "producerHeartbeat",
            "Join a producer group, stay in it, be asked about transactions, leave it",
            transactions.heartbeat,
            {200: Content("Transactions that the member is asked about.", schemas.CHECKS)},
            description=here,
            parameters=group,
            request=Content("Who the member is.", schemas.HEARTBEAT),
            errors=(UnknownProducerMember, TooManyMembers),
        ),
        route(
            "GET",
            f"{base}/transactions",
            "listTransactions",
            f"Transactions of a producer group, oldest first, up to {transactions.MAX_LISTED}",
            transactions.list_transactions,
            {200: Content("Finished ones are remembered for a while.", schemas.TRANSACTIONS)},
            description=here,
            parameters=(*group, state),
        ),
        route(
            "POST",
            f"{base}/transactions",
            "beginTransaction",
            "Begin a transaction with its first messages",
            transactions.begin,
            stored,
            description=f"{here} The same member and number again give the same transaction.",
            parameters=group,
            request=Content("Who begins it, and messages of any topics.", schemas.begin(config)),
            errors=(
                UnknownProducerMember,
                UnknownTransaction,
                TooManyTransactions,
                SequenceTakenOver,
                *message_errors,
            ),
        ),
        route(
            "GET",
            one,
            "getTransaction",
            "One transaction",
            transactions.get_transaction,
            known,
            description=here,
            parameters=(*group, transaction),
            errors=(UnknownTransaction,),
        ),
        route(
            "POST",
            f"{one}/messages",
            "addToTransaction",
            "Send more messages of a transaction",
            transactions.add_messages,
            stored,
            description=f"{here} The same part again is stored once.",
            parameters=(*group, transaction),
            request=Content("Messages of any topics.", schemas.add(config)),
            errors=(UnknownTransaction, TransactionDecided, *message_errors),
        ),
        route(
            "POST",
            f"{one}/commit",
            "commitTransaction",
            "Commit a transaction",
            transactions.commit,
            decided,
            description=f"{here} Any member, or an operator, may; again has no effect.",
            parameters=(*group, transaction),
            request=Content("Who commits.", schemas.decide(config)),
            errors=(UnknownTransaction, TransactionDecided),
        ),
        route(
            "POST",
            f"{one}/rollback",
            "rollBackTransaction",
            "Roll a transaction back",
            transactions.roll_back,
            decided,
            description=f"{here} Any member, or an operator, may; again has no effect.",
            parameters=(*group, transaction),
            request=Content("Who rolls back.", schemas.decide(config)),
            errors=(UnknownTransaction, TransactionDecided),
        ),
        route(
            "POST",
            f"{base}/sequences/{{sequence}}",
            "takeSequence",
            "Go on with a sequence of transactions",
            transactions.take_sequence,
            {200: Content("Where it stands. Whoever had it before can begin no more of it.", schemas.SEQUENCE)},
            description=f"{here} What is open of the sequence is rolled back.",
            parameters=(*group, sequence),
            request=Content("Who goes on.", schemas.TAKE),
            errors=(UnknownProducerMember, TooManyTransactions),
        ),
    )
