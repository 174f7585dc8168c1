"""HTTP and people: APIs, auth, limits, metrics, command line."""
