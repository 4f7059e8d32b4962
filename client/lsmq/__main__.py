"""``python -m lsmq`` is the command ``lsmq``."""

from lsmq.cli import main

if __name__ == "__main__":
    main()
