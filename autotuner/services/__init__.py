"""Ways to start, watch and stop a server on a host."""
