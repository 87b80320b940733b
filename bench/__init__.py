"""Ostinato's figures beside hand-written loops on the same database, in one interleaved run."""
