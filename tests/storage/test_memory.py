"""What a store needs no more goes back to the system."""

import subprocess
import sys
from pathlib import Path

import pytest

# Blocks of a few KiB of a thread of its own, freed: the C library keeps them. ``kept`` may be one that lies on top.
FREED = """
import threading
from lsmq_node.storage.memory import give_back, use_one_arena

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

kept = []
def work():
    large = bytes(30 << 20)  # the C library takes it for how much the process needs now and then
    del large
    blocks = [bytes(4000) for _ in range(10_000)]
    {keep}
    del blocks
    freed.set()
    end.wait()

{one_arena}
freed, end = threading.Event(), threading.Event()
thread = threading.Thread(target=work)
thread.start()
freed.wait()
before = resident()
give_back()
print(before - resident())
end.set()
thread.join()
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux what is resident")
@pytest.mark.parametrize(
    "program",
    [
        FREED.format(keep="kept.append(bytes(4000))", one_arena=""),
        FREED.format(keep="", one_arena="use_one_arena()"),
    ],
)
def test_what_was_freed_goes_back_to_the_system(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) > 10_000 * 4000 // 2
