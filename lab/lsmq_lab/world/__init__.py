"""The product itself under a seed: nodes, clients, threads, files and sockets in one operating-system thread.

``scheduler``   who runs next, and what time it is: greenlets in the place of threads
``threads``     what :mod:`lsmq.runtime` gives, on that schedule
``loop``        asyncio's own event loop over simulated sockets, on virtual time
``network``     connections between addresses: delays, cuts, resets; ``sockets`` is what programs hold of it
``disk``        what of a machine's files a power cut leaves (``medium``); ``files`` is ``os`` for the programs on it;
                ``drive`` gives such a disk to the storage engine alone
``machine``     all of that put in place of the real things, for as long as a scope lasts
``cluster``     nodes as ``lsmq serve --cluster`` composes them, and what befalls them
``clients``     applications that use them, in more ways in ``uses``; ``faults`` the weather
``checks``      what must hold at every moment
``scenes``      aimed plans: who is hurt at which moment; ``aimed`` are those that there are
``runs``        one seed: all of that together, and the verdict

Nothing of the product is written a second time here: what runs is the daemon as ``lsmq serve`` composes it.
"""
