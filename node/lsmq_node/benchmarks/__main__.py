"""``python -m lsmq_node.benchmarks`` is ``lsmq bench``."""

from lsmq_node.benchmarks.command import main

if __name__ == "__main__":
    main()
