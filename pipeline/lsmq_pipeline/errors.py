"""Errors of the pipeline, in the tree of :mod:`lsmq.errors`. Spark shows the text of the one that failed a task."""

from __future__ import annotations

from lsmq.errors import InvalidRequest, LsmqError, TopicReplaced, UnknownTopic

#: What is raised of a topic that was deleted, and perhaps made anew.
GONE = (UnknownTopic, TopicReplaced)


class InvalidOption(InvalidRequest):
    """An option that is unknown, missing or has a value it cannot have; ``details["option"]`` names it."""

    code = "invalid_option"


class DataLoss(LsmqError):
    """Messages that were to be read are not there any more, and ``failOnDataLoss`` is on.

    ``details`` carries ``topic`` and, for one queue of those, ``queue``, ``wanted`` and ``earliest`` or ``latest``.
    """

    code = "data_loss"


class SchemaMismatch(InvalidRequest):
    """A column of a data frame is missing, of another type, or holds a value that no message can have."""

    code = "schema_mismatch"


class InputChanged(LsmqError):
    """A repeated task came with other rows, or rows in another order, than the attempt whose rows are stored.

    Nothing was stored twice; but what this attempt wanted to write is not what is there.
    """

    code = "input_changed"


class JavaNotFound(LsmqError):
    """Spark needs Java 17 or newer, and none was found."""

    code = "java_not_found"


class JobFailed(LsmqError):
    """A job found what it looks for, or could not be carried through; the message says which."""

    code = "job_failed"


class PlotsNotInstalled(LsmqError):
    """A plot needs matplotlib."""

    code = "plots_not_installed"


class SparkNotInstalled(LsmqError):
    """The pipeline needs ``lsmq[spark]``."""

    code = "spark_not_installed"
