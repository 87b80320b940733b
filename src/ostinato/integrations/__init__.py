"""Callers' own connections and frameworks, one file for each library."""
