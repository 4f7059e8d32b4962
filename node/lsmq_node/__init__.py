"""The LSMQ node: storage engine, broker and HTTP daemon."""
