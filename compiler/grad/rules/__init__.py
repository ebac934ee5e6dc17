"""Gradient rules, one file an operator family; each fills the table of `registry` when it is imported."""
