"""Token ids in, token deltas out: replicas, placement, failover, the engine."""
