"""Serving engines: what differs between them."""
