"""Producer groups and transactions. docs/transactions.md describes the protocol."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from lsmq.errors import (
    DocumentsFull,
    InvalidRequest,
    MessageTooLarge,
    NotLeader,
    SequenceTakenOver,
    TooManyGroups,
    TooManyMembers,
    TooManyQueues,
    TooManyTransactions,
    TransactionDecided,
    TransactionTooLarge,
    UnknownProducerMember,
    UnknownQueue,
    UnknownTopic,
    UnknownTransaction,
)
from lsmq.record_batch import RecordBatch
from lsmq_node.broker import asked_from
from lsmq_node.rights import ResourceKind
from lsmq_node.storage import StoredTopic
from lsmq_node.transactions import TransactionPart, TransactionRecord, TransactionState
from lsmq_node.transactions.coordinator import ShardTransactions
from lsmq_node.transactions.delivery import pack_named
from lsmq_node.transactions.records import PartNames, encode_part
from lsmq_node.workers import LoopTurns

from . import transaction_schemas as schemas
from .codec import answer
from .pages import LIMIT, PAGE, page
from .produce import Packer, messages_of, values_of
from .routing import Call, Content, Parameter, Routes
from .schema import text

HEARTBEATS_PER_SESSION = 3
ROUTES = Routes("transactions")
_TRANSACTION = Parameter("transaction", schemas.TRANSACTION_ID, "Id of the transaction.")
_SEQUENCE = Parameter("sequence", schemas.NAME, "Name of the sequence.")
_STATE = Parameter(
    "state",
    {"enum": [*(state.value for state in TransactionState), "undelivered"]},
    "Only these; `undelivered`: committed, and not in all their shards.",
)
#: By when they were begun, then by id: names that sort like that.
_PAGE = (
    LIMIT,
    Parameter(
        "after",
        text(pattern="([0-9]{16}[.][A-Za-z0-9._:-]{1,120})?", default=""),
        "Those begun after this one: `next` of the page before.",
    ),
)
_DECIDED = Content("Decided, durably; `delivered` says whether consumers see all of it.", schemas.TRANSACTION)
_STORED = Content("Stored, durably, and not to be seen.", schemas.TRANSACTION)
_KNOWN = Content("As its coordinator knows it.", schemas.TRANSACTION)
_MESSAGE_ERRORS = (
    UnknownTopic,
    UnknownQueue,
    TooManyQueues,
    MessageTooLarge,
    TransactionTooLarge,
    DocumentsFull,
    NotLeader,
)


async def _coordinator(call: Call) -> tuple[ShardTransactions, str]:
    group = call.path("group")
    return await call.node.transactions.coordinator(group), group


async def _seen(shard: ShardTransactions) -> None:
    """What was seen of it is durable on return."""
    await shard.barrier()
    shard.check()


def describe(call: Call, transaction: TransactionRecord) -> dict[str, Any]:
    sees = call.asker.sees
    return {
        "transaction": transaction.id,
        "group": transaction.group,
        "state": transaction.state,
        "delivered": transaction.is_finished,
        "member": transaction.member,
        "reference": transaction.reference,
        "sequence": transaction.sequence,
        "position": transaction.position,
        "parts": transaction.parts,
        "messages": {topic: count for topic, count in transaction.messages.items() if sees(ResourceKind.TOPIC, topic)},
        "size_bytes": transaction.size_bytes,
        "begun_ms": transaction.begun_ms,
        "check_after_ms": transaction.check_after_ms,
        "check_every_ms": transaction.check_every_ms,
        "checks": transaction.checks,
        "max_checks": transaction.max_checks,
        "decided_ms": transaction.decided_ms,
        "decided_by": transaction.decided_by,
        "waiting_shards": sorted(transaction.waiting),
    }


@ROUTES.post(
    "/v1/producer-groups/{group}/heartbeat",
    Content("Transactions that the member is asked about.", schemas.CHECKS),
    request=Content("Who the member is.", schemas.HEARTBEAT),
    errors=(UnknownProducerMember, TooManyMembers, TooManyGroups, NotLeader),
)
async def producer_heartbeat(call: Call) -> web.StreamResponse:
    """Join a producer group, stay in it, be asked about transactions, leave it.

    Only at the group's coordinator (`GET /v1/groups/{group}/coordinator`).
    """
    document = await call.checked_document()
    shard, group = await _coordinator(call)
    key = group, document["member"]
    if document["leave"]:
        await shard.leave(key)
        return answer(call.request, {"member": key[1], "heartbeat_ms": 0, "checks": []})
    session_ms = document["session_ms"]
    known = shard.book.members.get(key)
    heartbeat_ms = (session_ms if known is None else known.session_ms) // HEARTBEATS_PER_SESSION
    given, remote = document.get("client"), call.request.remote or ""
    asked = await shard.heartbeat(
        key,
        session_ms,
        f"{given} ({remote})" if given else remote,
        checks=document["checks"],
        join=document["join"],
        wait_s=call.node.transactions.hold_s(min(document["wait_ms"], heartbeat_ms, call.broker.config.max_wait_ms)),
    )
    found = {"member": key[1], "heartbeat_ms": heartbeat_ms, "checks": [describe(call, each) for each in asked]}
    return answer(call.request, found)


@ROUTES.post(
    "/v1/producer-groups/{group}/transactions",
    _STORED,
    request=Content("Who begins it, and messages of any topics.", schemas.BEGIN),
    errors=(UnknownProducerMember, UnknownTransaction, TooManyTransactions, SequenceTakenOver, *_MESSAGE_ERRORS),
)
async def begin_transaction(call: Call) -> web.StreamResponse:
    """Begin a transaction with its first messages.

    Only at the group's coordinator (`GET /v1/groups/{group}/coordinator`). The same member and number again give
    the same transaction.
    """
    document, part = await _part(call)
    shard, group = await _coordinator(call)
    _check_fits(shard, part)
    member, number = document["member"], document["number"]
    transaction = TransactionRecord(
        group,
        f"{member}-{number}",
        member,
        document["reference"],
        document.get("sequence") or "",
        document["position"],
        shard.store.time.present_ms,
        document["check_after_ms"],
        document["check_every_ms"],
        document["max_checks"],
    )
    return answer(
        call.request,
        describe(call, await shard.begin(transaction, number, part, document["sequence_epoch"], _client(call))),
    )


@ROUTES.post(
    "/v1/producer-groups/{group}/transactions/{transaction}/messages",
    _STORED,
    parameters=(_TRANSACTION,),
    request=Content("Messages of any topics.", schemas.ADD),
    errors=(UnknownTransaction, TransactionDecided, *_MESSAGE_ERRORS),
)
async def add_to_transaction(call: Call) -> web.StreamResponse:
    """Send more messages of a transaction.

    Only at the group's coordinator (`GET /v1/groups/{group}/coordinator`). The same part again is stored once.
    """
    document, part = await _part(call)
    shard, group = await _coordinator(call)
    _check_fits(shard, part)
    return answer(
        call.request,
        describe(call, await shard.add((group, call.path("transaction")), document["part"], part, _client(call))),
    )


def _client(call: Call) -> str:
    return asked_from.get() or ""


async def _part(call: Call) -> tuple[dict[str, Any], TransactionPart]:
    """A request, and its messages packed by topic and shard. Raises what is wrong with them."""
    document = await call.document()
    turns = LoopTurns()
    packers: dict[str, Packer] = {}
    topics: dict[str, StoredTopic] = {}
    counts: dict[str, int] = {}
    for index, message in enumerate(messages_of(document, call.schema, call.broker.admission)):
        rest = dict(message) if type(message) is dict else {}
        name = rest.pop("topic", None)
        if type(name) is not str:
            raise InvalidRequest(
                f"messages[{index}].topic must be the name of a topic", field=f"messages[{index}].topic"
            )
        if name not in packers:
            call.asker.check_named(ResourceKind.TOPIC, name)
            topics[name] = await call.broker.topic(name)
            packers[name] = Packer(call.broker, topics[name])
        packers[name].add(index, rest)
        counts[name] = counts.get(name, 0) + 1
        await turns.after(values_of(rest))
    batches: list[tuple[int, int, str, bytes]] = []
    by_shard: dict[int, int] = {}
    names: list[PartNames] = []
    for name, packer in packers.items():
        for shard, packed in packer.parts.items():
            batch = packed.builder.build()
            call.broker.admission.message_sizes(topics[name], RecordBatch(batch, verify=False))
            if topics[name].named:
                batch = pack_named(packed.joined_names, batch)
                names.append(PartNames(shard, topics[name].id, packed.joined_names))
            batches.append((shard, topics[name].id, name, batch))
            by_shard[shard] = by_shard.get(shard, 0) + 1
    return {**call.route.defaults, **document}, TransactionPart(encode_part(batches), counts, by_shard, names)


def _check_fits(shard: ShardTransactions, part: TransactionPart) -> None:
    """Refuse what no store takes in one piece."""
    options = shard.store.options
    for what, count, limit in (
        ("bytes", len(part.body), options.max_batch_bytes),
        ("messages", sum(part.messages.values()), options.max_batch_records),
    ):
        if count > limit:
            raise TransactionTooLarge(
                f"{count} {what} in one request are over the limit of {limit}, which memtable_bytes sets; send fewer a "
                "request",
                limit=limit,
            )


async def _decide(call: Call, state: TransactionState) -> web.StreamResponse:
    document = await call.checked_document()
    shard, group = await _coordinator(call)
    wait_s = call.node.transactions.hold_s(document["wait_ms"]) if state is TransactionState.COMMITTED else 0.0
    key, by = (group, call.path("transaction")), document.get("member") or "operator"
    return answer(call.request, describe(call, await shard.decide(key, state, by, wait_s)))


@ROUTES.post(
    "/v1/producer-groups/{group}/transactions/{transaction}/commit",
    _DECIDED,
    parameters=(_TRANSACTION,),
    request=Content("Who commits.", schemas.DECIDE),
    errors=(UnknownTransaction, TransactionDecided, NotLeader),
)
async def commit_transaction(call: Call) -> web.StreamResponse:
    """Commit a transaction.

    Only at the group's coordinator (`GET /v1/groups/{group}/coordinator`). Any member, or an operator, may; again
    has no effect.
    """
    return await _decide(call, TransactionState.COMMITTED)


@ROUTES.post(
    "/v1/producer-groups/{group}/transactions/{transaction}/rollback",
    _DECIDED,
    parameters=(_TRANSACTION,),
    request=Content("Who rolls back.", schemas.DECIDE),
    errors=(UnknownTransaction, TransactionDecided, NotLeader),
)
async def roll_back_transaction(call: Call) -> web.StreamResponse:
    """Roll a transaction back.

    Only at the group's coordinator (`GET /v1/groups/{group}/coordinator`). Any member, or an operator, may; again
    has no effect.
    """
    return await _decide(call, TransactionState.ROLLED_BACK)


@ROUTES.get(
    "/v1/producer-groups/{group}/transactions/{transaction}",
    _KNOWN,
    parameters=(_TRANSACTION,),
    errors=(UnknownTransaction, NotLeader),
)
async def get_transaction(call: Call) -> web.StreamResponse:
    """One transaction.

    Only at the group's coordinator (`GET /v1/groups/{group}/coordinator`).
    """
    shard, group = await _coordinator(call)
    found = shard.transaction((group, call.path("transaction")))
    await _seen(shard)
    return answer(call.request, describe(call, found))


@ROUTES.get(
    "/v1/producer-groups/{group}/transactions",
    Content("Finished ones are remembered for a while.", schemas.TRANSACTIONS),
    parameters=(_STATE, *_PAGE),
)
async def list_transactions(call: Call) -> web.StreamResponse:
    """Transactions of a producer group, oldest first.

    Only at the group's coordinator (`GET /v1/groups/{group}/coordinator`).
    """
    shard, group = await _coordinator(call)
    wanted = call.query["state"]
    known = (
        each
        for each in shard.book.transactions.values()
        if each.group == group and wanted in (None, each.state if each.is_finished or each.is_open else "undelivered")
    )
    found, following = page(call, known, lambda each: f"{each.begun_ms:016d}.{each.id}")
    await _seen(shard)
    return answer(call.request, {"transactions": [describe(call, each) for each in found], "next": following})


@ROUTES.get(
    "/v1/producer-groups", Content("Those with members or unfinished transactions.", schemas.GROUPS), parameters=PAGE
)
async def list_producer_groups(call: Call) -> web.StreamResponse:
    """Producer groups that this node coordinates."""
    sees = call.asker.sees
    found = [
        {
            "group": group,
            "shard": shard.port.number,
            "members": len(shard.book.members_of(group)),
            "unfinished": shard.book.unfinished(group),
        }
        for shard in call.node.transactions.shards()
        for group in shard.book.groups()
        if sees(ResourceKind.PRODUCER_GROUP, group)
    ]
    groups, following = page(call, found, lambda each: str(each["group"]))
    return answer(call.request, {"groups": groups, "next": following})


@ROUTES.get("/v1/producer-groups/{group}", Content("As its coordinator knows it.", schemas.GROUP))
async def describe_producer_group(call: Call) -> web.StreamResponse:
    """Members and sequences of a producer group.

    Only at the group's coordinator (`GET /v1/groups/{group}/coordinator`).
    """
    shard, group = await _coordinator(call)
    book = shard.book
    members = [(id, book.members[group, id]) for id in book.members_of(group)]
    own = [each for each in book.transactions.values() if each.group == group]
    found = {
        "group": group,
        "shard": shard.port.number,
        "open": sum(each.is_open for each in own),
        "undelivered": sum(not each.is_open and not each.is_finished for each in own),
        "members": [
            {
                "id": id,
                "client": member.client,
                "session_ms": member.session_ms,
                "checks": member.checks,
                "heartbeat_age_ms": round(1000 * book.age_s((group, id), shard.now)),
                "transactions": member.number,
            }
            for id, member in members
        ],
        "sequences": [
            {"sequence": name, "epoch": each.epoch, "position": each.position, "member": each.member}
            for (of, name), each in sorted(book.sequences.items())
            if of == group
        ],
    }
    await _seen(shard)
    return answer(call.request, found)


@ROUTES.post(
    "/v1/producer-groups/{group}/sequences/{sequence}",
    Content("Where it stands. Whoever had it before can begin no more of it.", schemas.SEQUENCE),
    parameters=(_SEQUENCE,),
    request=Content("Who goes on.", schemas.TAKE),
    errors=(UnknownProducerMember, TooManyTransactions, SequenceTakenOver, NotLeader),
)
async def take_sequence(call: Call) -> web.StreamResponse:
    """Go on with a sequence of transactions.

    Only at the group's coordinator (`GET /v1/groups/{group}/coordinator`). What is open of the sequence is rolled
    back.
    """
    document = await call.checked_document()
    shard, group = await _coordinator(call)
    name = call.path("sequence")
    taken = await shard.take(group, name, document["member"], document.get("epoch"))
    return answer(call.request, {"sequence": name, "epoch": taken.epoch, "position": taken.position})
