"""Programs that come along: what a document is asked most often."""
