"""A payment and the messages about it: both, or neither, whatever dies in between.

The payment goes into a database of its own (here: SQLite), together with the id of the transaction. So whoever is asked
later, in this process or another one of the group, can tell whether it was done.
"""

import asyncio
import sqlite3

from lsmq import Client, Consumer, TransactionalProducer, TransactionInfo

database = sqlite3.connect(":memory:")
database.execute("CREATE TABLE payments (transaction_id TEXT PRIMARY KEY, customer TEXT, amount INTEGER)")


def was_it_paid(transaction: TransactionInfo) -> str:
    query = "SELECT 1 FROM payments WHERE transaction_id = ?"
    return "commit" if database.execute(query, (transaction.id,)).fetchone() else "rollback"


def pay(transaction_id: str | None, customer: str, amount: int) -> None:
    if amount > 100:
        raise ValueError(f"{customer} has no {amount}")
    with database:
        database.execute("INSERT INTO payments VALUES (?, ?, ?)", (transaction_id, customer, amount))


async def main() -> None:
    async with Client() as client:
        for topic in ("invoices", "mails"):
            await client.delete_topic(topic, missing_ok=True)
            await client.create_topic(topic, queues=4)

        async with TransactionalProducer(client, "billing", check=was_it_paid, check_after_ms=500) as producer:
            for customer, amount in (("anna", 20), ("ben", 500)):
                try:
                    async with producer.transaction(reference=f"bill of {customer}") as transaction:
                        await transaction.send("invoices", f"{customer} pays {amount}", key=customer)
                        await transaction.send("mails", f"thank you, {customer}", key=customer)
                        pay(transaction.id, customer, amount)
                except ValueError as error:
                    print(f"rolled back: {error}")

            # One that does not come to its end: the producer is asked, looks, and commits.
            forgotten = producer.transaction(reference="bill of carl")
            try:
                async with forgotten:
                    await forgotten.send("invoices", "carl pays 30", key="carl")
                    pay(forgotten.id, "carl", 30)
                    raise asyncio.CancelledError  # As if something tore the block down.
            except asyncio.CancelledError:
                pass

            found: list[str] = []
            async with Consumer(client, ["invoices", "mails"], group="archive") as consumer:
                while len(found) < 3:
                    found += [message.text() for message in await consumer.poll(10, timeout_ms=1000)]
        print(sorted(found))
        assert sorted(found) == ["anna pays 20", "carl pays 30", "thank you, anna"]


asyncio.run(main())
