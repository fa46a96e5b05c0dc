"""The doctor, which finds problems of hosts and of the network paths between them."""

#: Parts of an examination. The last one trains, so the command line runs it as jobs.
COLLECTIVES = "collectives"
PARTS = ("hosts", "pairs", "alike", COLLECTIVES)
