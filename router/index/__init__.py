"""Which replica holds how much of a prompt: told by the engines' KV events, or taken from what was sent there."""
