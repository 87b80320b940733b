"""Helpers for tests: real PostgreSQL servers and what else a test needs to see the engine work."""
