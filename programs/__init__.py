"""What is run: sessions, their ledgers and prompts."""
