"""Finding the first rewrite that breaks a model, and a few nodes that show it."""
