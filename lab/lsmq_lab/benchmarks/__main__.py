"""``python -m lsmq_lab.benchmarks`` is ``lsmq bench``."""

from __future__ import annotations

import click

from lsmq_lab.benchmarks import BENCHES
from lsmq_lab.benchmarks.command import command_of


@click.group(name="bench")
def bench() -> None:
    """Measure this machine: the store in process, or a node over the socket.

    Peers run beside it in the same run where they are installed, and ratios are printed. Progress goes to
    standard error, so that --json can be piped.
    """


for _benchmark in BENCHES.values():
    bench.add_command(command_of(_benchmark))

if __name__ == "__main__":
    bench(prog_name="bench")
