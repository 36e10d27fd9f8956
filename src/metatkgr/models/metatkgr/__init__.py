"""MetaTKGR: a temporal encoder that is adapted to each new entity by a step on its first facts."""
