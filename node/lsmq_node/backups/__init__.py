"""Backups: made of snapshots of all shards, kept in a directory, verified, restored, looked into.

::

    repository.py   the directory: backups, and the files that they share
    manifest.py     what a backup is made of
    create.py       a new backup, from the nodes
    check.py        reads everything of a backup, or of a data directory
    restore.py      a node's data directory of a backup
    extract.py      messages of one topic of a backup, sent to another

Command lines (``lsmq backup``, ``lsmq verify``) are made of this; a node does not need it.
"""
