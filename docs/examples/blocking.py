"""The same library without asyncio: `lsmq.sync`."""

from itertools import islice

from lsmq.sync import Client, Consumer, Producer

with Client() as client:
    client.delete_topic("blocking", missing_ok=True)
    client.create_topic("blocking", queues=4)

    with Producer(client, "blocking") as producer:
        receipts = producer.send_many((f"user {number % 10}", f"click {number}") for number in range(1000))
        receipts.wait()
        sent = producer.send_and_wait("the last click", key="user 1")

    with Consumer(client, "blocking", group="report") as consumer:
        messages = list(islice(consumer, 1001))
        consumer.commit()

    assert sorted(message.text() for message in messages)[-1] == "the last click"
    print(f"read {len(messages)} clicks, the last at offset {sent.offset} of queue {sent.queue}")
