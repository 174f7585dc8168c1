"""Runs of programs that outlive whoever asked for them, and whoever runs them."""
