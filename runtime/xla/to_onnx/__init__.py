"""jaxpr → ONNX: a table of rules, one for each jax.lax primitive, in files by family."""
