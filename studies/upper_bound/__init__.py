"""How high could numbers on meta-test be? Fitted on meta-test: an upper bound, never a model."""
