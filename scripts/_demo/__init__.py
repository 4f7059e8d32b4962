"""The demo behind ``scripts/demo``: real flights through a real node, killed on the way and checked.

The rooms: ``flights`` reads the table, ``node`` runs the daemon, ``workers`` are the processes that send and
receive, ``runs`` puts a run together, ``check`` compares what was sent with what came
back, ``display`` talks to the terminal.
"""
