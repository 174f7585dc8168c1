"""`antiphon bench router`: routers side by side over the same replicas."""
