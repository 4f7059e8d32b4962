"""Saving what is whole of a damaged store into a new one; the old one is only read.

:func:`repair_store` does it for one store. What is found is told as it is found (:mod:`.findings`). The parts, from
the files up: :mod:`.table_scan`, :mod:`.log_scan` and :mod:`.chain` read past damage; :mod:`.sources` and
:mod:`.merged` make one stream of all tables; :mod:`.replay` applies the log as far as :mod:`.placing` proves where its
entries belong; :mod:`.ledger` holds what should be there against what is; :mod:`.names` gives names to queues that
lost theirs; :mod:`.output` writes.

Not supported: taking messages of a damaged block from log segments that were flushed already.
"""

from .findings import (
    Damage,
    Finding,
    FindingsBook,
    Loss,
    Remark,
    Renamed,
    Summary,
    Tell,
    Unknown,
    Unplaced,
    as_dict,
)
from .known import TopicHint
from .shard import Advance, ShardRepair
from .store import empty_directory, is_shard, repair_store, spool, unusable, write_empty

__all__ = [
    "FindingsBook",
    "Damage",
    "Finding",
    "Loss",
    "Remark",
    "Renamed",
    "ShardRepair",
    "Summary",
    "Tell",
    "TopicHint",
    "Unknown",
    "Unplaced",
    "as_dict",
    "Advance",
    "empty_directory",
    "is_shard",
    "repair_store",
    "spool",
    "unusable",
    "write_empty",
]
