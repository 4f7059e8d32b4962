"""What a store needs no more goes back to the system."""

import subprocess
import sys
from pathlib import Path

import pytest

# Blocks of a few KiB of a thread of its own, freed but for the last one, which lies on top: the C library keeps them.
FREED = """
import ctypes, threading
from lsmq_node.storage.memory import give_back

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

kept = []
def work():
    blocks = [bytes(4000) for _ in range(20_000)]
    kept.append(bytes(4000))
    del blocks
thread = threading.Thread(target=work)
thread.start()
thread.join()
before = resident()
give_back()
print(before - resident())
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux what is resident")
def test_what_was_freed_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) > 20_000 * 4000 // 2
