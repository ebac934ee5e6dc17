"""ONNX graph → XLA executable, through JAX. The only part of pfvm that imports jax."""
