"""Where replicas come from, which of them may be one pool, and which version a new session gets."""
