"""Graph passes, one a file, over onnx_ir graphs. Nothing here runs a model or imports a framework."""
