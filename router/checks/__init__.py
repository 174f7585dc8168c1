"""What must be true of those facts, and what to do where it is not."""
