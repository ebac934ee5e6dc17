"""Forms that ONNX Runtime's CPU kernels compute faster: on a copy, when a model is loaded.

apply.py        the walk, and which models it is for      columns.py         windows of an image as a matrix
convolution.py  convolutions by weights that change       input_gradient.py  transposed ones, likewise
readers.py      what follows a node                       relu_gradient.py   the gradient of Relu
scaled_sums.py  the updates of optimizers                 branches.py       a selection by one number
negative_log_likelihood.py  the loss of classifiers

Every form is an identity of real numbers: results differ by the order in which sums are added up. Whether a form pays
off is decided by shapes alone; the measurements are in each file.
"""
