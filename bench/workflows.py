"""Workflows of three steps: what a contender needs that remembers the steps of its jobs."""

from typing import Protocol

from bench.contenders import Contender

STEPS = ("first", "second", "third")
"""Each calls the handler with the workflow's number; no step starts before the one before it is committed."""


class WorkflowContender(Contender, Protocol):
    """One whose `work` runs each job as a workflow, up to `target.concurrency` of them at a time."""

    async def steps_completed(self) -> int:
        """Count the steps whose results are in the database: the check after the clock has stopped."""
