"""Learning weights: one loop for all models, checkpoints, traces."""
