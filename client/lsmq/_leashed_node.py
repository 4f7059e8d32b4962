"""``lsmq serve`` for :class:`lsmq.testing.NodeProcess`: it stops when its standard input ends, and so with its parent.

A parent that was killed could not tell it otherwise.
"""

from __future__ import annotations

import os
import signal
import sys

from lsmq import runtime


def _watch() -> None:
    while os.read(0, 1 << 10):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the node that the environment describes."""
    runtime.Thread(target=_watch, name="leash", daemon=True).start()
    from lsmq.cli import main as run

    sys.argv = ["lsmq", "serve"]
    run()


if __name__ == "__main__":
    main()
