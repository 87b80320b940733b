"""Callers' own connections and frameworks."""
