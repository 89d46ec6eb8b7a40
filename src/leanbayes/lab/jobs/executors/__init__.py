"""The executors, one in each file."""
