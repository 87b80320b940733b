"""`app.doctor`: what is wrong with a database, its settings and the work in it, and what to do about it."""

from .doctor import Doctor
from .findings import Finding, Level
from .self_test import SelfTest, Stage

__all__ = ["Doctor", "Finding", "Level", "SelfTest", "Stage"]
