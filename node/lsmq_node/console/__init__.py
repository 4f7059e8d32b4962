"""Files of the console, as browsers get them; served by :mod:`lsmq_node.api.console`."""
