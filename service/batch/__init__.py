"""Batches: many requests in one file, answered in another, each batch a job."""
