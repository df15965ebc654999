"""What to think: pure decisions, without clock, disk or wire."""
