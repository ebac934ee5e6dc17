"""`pfvm bench --optimizers`: pfvm beside other optimizers of ONNX files, on the same files in the same run."""
