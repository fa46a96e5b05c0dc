"""Reads and checks the variables of a job, and its script's arguments and environment."""
