"""Watches a job: derives its outcome from the reports of its hosts."""
