"""Recurring schedules: a message again and again, at the times that a cron expression says.

A schedule is a document of the shard of the queue that its messages go to. A little before each time the leader stores
one :mod:`delayed <lsmq_node.delayed>` message, due at that time, and with it the document that says when the next is.
"""

from .records import Schedule
from .service import ScheduleService

__all__ = ["Schedule", "ScheduleService"]
