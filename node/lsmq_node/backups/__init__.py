"""Backups: made of snapshots of all shards, kept in a directory, verified, restored, looked into.

::

    places.py, objects.py   where backups lie: a directory, or an object store
    repository.py           backups, and the files that they share
    manifest.py             what a backup is made of
    create.py               a new backup, from the nodes
    check.py                reads everything of a backup, or of a data directory
    restore.py              the data directory of a node of its own
    restore_cluster.py      that of a node of a new cluster
    extract.py              messages of one topic of a backup, sent to another
    extract_groups.py       where groups go on there

Command lines (``lsmq backup``, ``lsmq verify``) are made of this; a node does not need it.
"""
