"""The control node's side: the plan of a job, the watch over it, the command line."""
