"""Errors of the control plane. They are errors of ``lsmq`` with codes of their own."""

from __future__ import annotations

from lsmq.errors import LsmqError, StorageError, Unavailable


class NoControlLeader(Unavailable):
    """No voter is known to lead: an election is under way, or a majority of the voters cannot be reached."""

    code = "no_control_leader"


class NotControlLeader(Unavailable):
    """This voter does not lead; nothing was done. ``details`` names the ``leader`` (a node id) where known."""

    code = "not_control_leader"


class NodeRuns(LsmqError):
    """A start of a node while another process runs under the same name. ``details`` has its ``node`` and ``url``."""

    code = "node_runs"
    retriable = True


class ControlStopped(StorageError):
    """The voter has stopped for good: its disk failed, or its log does not fit that of the others."""

    code = "control_stopped"


class NotAuthenticated(LsmqError):
    """A request inside the cluster without the right proof of the cluster secret."""

    code = "not_authenticated"


class SecretUnusable(LsmqError):
    """The file of the cluster secret cannot be read, or what it holds is too weak."""

    code = "secret_unusable"


class TlsUnusable(LsmqError):
    """A certificate, its key or an authority cannot be read, or do not belong together; the message names the file."""

    code = "tls_unusable"
