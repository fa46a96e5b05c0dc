"""From the inventory's facts to ranks, their GPUs, the code archive and the manifest."""
