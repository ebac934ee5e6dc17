"""What is different between two models, by structure and not by name."""
