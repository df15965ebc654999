"""Drives load at a server and yields raw request records."""
