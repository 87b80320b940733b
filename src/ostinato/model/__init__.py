"""Pure values and decisions: no I/O, no await, no clock."""
