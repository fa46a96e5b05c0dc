"""Plans ranks, their GPUs, the code archive and the manifest from the inventory's facts."""
