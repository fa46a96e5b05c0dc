"""The doctor: what is wrong with hosts and with the paths between them."""

#: What it can do. The last one trains: it is done by the command line, with jobs.
COLLECTIVES = "collectives"
PARTS = ("hosts", "pairs", "alike", COLLECTIVES)
