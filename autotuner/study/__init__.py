"""One study: asks for configurations, is told outcomes, and continues after any interruption (the only door to Optuna)."""
