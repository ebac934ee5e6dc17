"""What ONNX Runtime lacks, expressed by what it has: on a copy, when a model is loaded.

kernels.py   what ONNX Runtime has           scope.py, node.py   what a rule reads and writes
rules/       operators by family             functions.py        operators that their schema defines by others
opsets.py    older and newer opsets          widen.py            element types that a kernel lacks
expander.py  the walk that applies them
"""
