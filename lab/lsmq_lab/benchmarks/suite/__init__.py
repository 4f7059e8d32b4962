"""``lsmq bench suite``: every figure of ours beside those of others, with what the machine allows.

``row`` says what a row of it is; ``rows`` holds them, ``systems`` what is measured over the network; ``limits`` looks
at the machine, ``rounds`` measures, ``page`` and ``plot`` draw the report.
"""
