"""Which of the ready replicas gets the next call."""
