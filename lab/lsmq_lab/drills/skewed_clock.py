"""``lsmq`` in a process whose wall clock is wrong: ``python -m lsmq_lab.drills.skewed_clock SECONDS ARGUMENTS..``.

All of the product asks ``lsmq.runtime`` for the wall clock, when it needs it, and libraries the module ``time``: here
both answer as a clock that is so many seconds ahead would. Monotonic clocks are as they are, and so is what the kernel
itself stamps.
"""

from __future__ import annotations

import runpy
import sys
import time

from lsmq import runtime


def skew(seconds: float) -> None:
    """From here on, for the whole process."""
    honest, offset_ns = time.time_ns, int(seconds * 1e9)
    time.time_ns = lambda: honest() + offset_ns
    time.time = lambda: (honest() + offset_ns) / 1e9
    runtime.install({"wall_time": time.time})


if __name__ == "__main__":
    skew(float(sys.argv[1]))
    sys.argv = ["lsmq", *sys.argv[2:]]
    runpy.run_module("lsmq", run_name="__main__", alter_sys=True)
