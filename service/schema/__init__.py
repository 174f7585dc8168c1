"""The wire: pydantic models of what clients send. Nothing below `service` sees them."""
