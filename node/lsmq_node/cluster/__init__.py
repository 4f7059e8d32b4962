"""A node of a cluster: its replicas, its links to other nodes, and its membership."""
