"""What a worker shows of itself: metrics for Prometheus, and answers to those who ask whether it is well."""
