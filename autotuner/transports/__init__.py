"""Ways to act on a host."""
