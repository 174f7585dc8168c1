"""Model directories: what is in them, and how ours is made."""
