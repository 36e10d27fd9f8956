"""The baselines: untrained rules and, as they come, the nine systems of the comparison."""
