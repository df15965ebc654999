"""Bench: the measuring machinery against a server that somebody else runs."""
