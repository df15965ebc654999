"""One study from start to recommendations: baseline, seeds, search, confirmation."""
