"""Up to where a command reads queues with names that prints what is there and no more."""

from __future__ import annotations

from lsmq._named_selection import NamedSelection
from lsmq.cli._named_ends import NamedEnds
from lsmq.queue_names import SLOTS, queue_slot
from support.named_topic import NAMES, named
from support.node_process import NodeProcess

ALL = (range(SLOTS),)


async def test_it_ends_where_all_that_is_read_ends(shared_node: NodeProcess, topic_name: str) -> None:
    async with named(shared_node, topic_name, each=2) as (client, _):
        numbers = {queue.name: queue.number for queue in await client.queues(topic_name)}
        await client.trim_queue(topic_name, NAMES[1], 2)
        await client.commit_offsets("g", topic_name, {numbers[NAMES[2]]: 2, numbers[NAMES[3]]: 1})
        await client.declare_queue(topic_name, "declared")
        for pattern, names in ((None, {NAMES[0], *NAMES[3:]}), ("agents.0.*", {NAMES[0]})):
            ends = NamedEnds(client, topic_name)
            ends.selects((), pattern, "g")
            await ends.find(None)
            assert ends._left == {numbers[name]: 2 for name in names}
        ends.pass_over({numbers[NAMES[0]]: 1})
        assert not ends.are_reached
        ends.pass_over({numbers[NAMES[0]]: 2})
        assert ends.are_reached


async def test_queues_that_another_member_has_count_no_more(shared_node: NodeProcess, topic_name: str) -> None:
    async with named(shared_node, topic_name, each=2) as (client, producer):
        numbers = {queue.name: queue.number for queue in await client.queues(topic_name)}
        ends = NamedEnds(client, topic_name)
        ends.selects((), None, None)
        await ends.find(ALL)
        assert set(ends._left) == set(numbers.values())
        half = range(SLOTS // 2, SLOTS)
        ends.lose((half,))
        await producer.send_and_wait("later", queue=NAMES[0])
        assert ends.has_lost
        await ends.find(())
        kept = {number for name, number in numbers.items() if queue_slot(name) not in half}
        assert ends._left == dict.fromkeys(kept, 2), "what came later is not waited for"
        assert 0 < len(kept) < len(NAMES)
        await ends.find((half,))
        assert set(ends._left) == set(numbers.values())


def test_a_name_is_found_among_many_without_a_look_at_each() -> None:
    compared = 0

    class Compared(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    selection = NamedSelection(tuple(Compared(f"q{number}") for number in range(1_000)))
    assert selection.has("q999") and not selection.has("q1000")
    assert compared < 100
