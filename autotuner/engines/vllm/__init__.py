"""vLLM, as far as measuring an endpoint of it needs."""
