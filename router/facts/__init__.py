"""What a machine and its engine environment are like: read once, handed on as values."""
