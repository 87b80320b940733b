"""What runs: the worker, its services, and the context a handler sees."""
