"""The ledger at work: recording, reading on, draining, and starting runs from subscriptions."""
