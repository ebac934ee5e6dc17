"""PyTorch function → Exported ONNX. The only part of the compiler that imports torch."""
