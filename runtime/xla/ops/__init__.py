"""Lowering rules, one file an operator family."""
