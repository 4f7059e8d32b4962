"""What ``--queue`` means, which depends on the topic: numbers, or a name."""

from __future__ import annotations

from collections.abc import Sequence

import click

from lsmq import Client
from lsmq.cli.options import QUEUES
from lsmq.units import is_whole_number


async def queue_of(client: Client, topic: str, text: str) -> int | str:
    """One queue of the topic, as ``--queue`` says it. Raises ``UnknownQueue`` for a number that it has not."""
    known = await client.topic(topic)
    if known.named:
        return text
    if not is_whole_number(text):
        raise click.BadParameter(
            f"{text!r:.80} is not a number, and the queues of topic {topic!r} have no names", param_hint="--queue"
        )
    number = int(text)
    known.check_queue(number)
    return number


async def queues_of(client: Client, topic: str, given: Sequence[str]) -> Sequence[int] | Sequence[str] | None:
    """The queues that ``--queue``, once or more, says: names, each as it is, or numbers and ranges of these."""
    if not given:
        return None
    known = await client.topic(topic)
    if known.named:
        return given
    context = click.get_current_context()
    option = next((found for found in context.command.params if found.name == "queues"), None)
    found = QUEUES.convert(",".join(given), option, context)
    if isinstance(found, range):  # It may name more queues than anybody could count.
        known.check_queue(found[-1])
    return found
