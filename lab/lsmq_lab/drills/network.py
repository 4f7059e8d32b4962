"""A network between the nodes of a local cluster that can be cut: a TCP proxy before each node's inner ports.

Nodes dial each other's proxies. Who dials, the kernel tells (:mod:`.connections`), so the nodes know nothing of it and
all have the same addresses. A cut network is silent, as a
broken switch is: connections stay open, new ones are taken, and nothing arrives until it is healed. What was under
way then arrives late; connections that were given up meanwhile never come about. A node can also be made deaf: then
those connections are silent that others dialled to it, while those that it dialled work. Or its port rejects: what
others dialled to it is reset, and so is what they dial, as if nobody listened there, while it lives and dials as ever.

The proxies run in a process of their own, so that a busy drill does not slow the nodes::

    python -m lsmq_lab.drills.proxies DIR     # reads a line, answers "done":
    cut n1 n2                                  # from all others, in both directions
    deafen n1                                  # nobody can dial it
    reject n1                                  # who dials it gets RST, and who had is cut off by one
    heal

Not supported: loss of single packets (TCP hides it), and delays other than that.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from lsmq.errors import LsmqError

DONE = "done"

_END_TIMEOUT_S = 10.0


class FaultNetwork:
    """The network of a local cluster that was planned with proxies. Ends with the process that made it."""

    def __init__(self, directory: Path) -> None:
        self._command = [sys.executable, "-m", "lsmq_lab.drills.proxies", str(directory)]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Listen on the proxies' ports. Raises ``LsmqError``."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._await_done()

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate(timeout=_END_TIMEOUT_S)

    def isolate(self, group: Iterable[str]) -> None:
        """Cut ``group`` off from all other nodes, in both directions; the nodes in it still reach each other."""
        self._tell(f"cut {' '.join(group)}")

    def deafen(self, node: str) -> None:
        """Silence what others dialled to ``node``, in both directions, and what they will; what it dials works."""
        self._tell(f"deafen {node}")

    def reject(self, node: str) -> None:
        """Reset what others dialled to ``node``, and what they will; what it dials works."""
        self._tell(f"reject {node}")

    def heal(self) -> None:
        self._tell("heal")

    def _tell(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        self._await_done()

    def _await_done(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        if self._process.stdout.readline().strip() != DONE:
            raise LsmqError("the network between the nodes ended; what it said stands on standard error")
