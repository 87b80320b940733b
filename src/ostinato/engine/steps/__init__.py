"""Durable functions at work: steps that are remembered, and runs that wait."""
