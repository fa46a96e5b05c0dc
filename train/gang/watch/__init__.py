"""From what the hosts report to the outcome of the gang."""
