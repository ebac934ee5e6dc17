"""Promise: what cannot be captured is refused with the user's line, the reason, and what to write instead."""

from __future__ import annotations

import inspect
import random
import re
from typing import Any

import onnx
import pytest

torch = pytest.importorskip("torch")

from pfvm.compiler.capture.export import capture  # noqa: E402
from pfvm.errors import CaptureError  # noqa: E402
from torch import nn  # noqa: E402

X = torch.ones(4, 3)
counter = [0]


def branch(x: Any) -> Any:
    if x.sum() > 0:  # here
        return x
    return -x


def item(x: Any) -> Any:
    return x * x.sum().item()  # here


def to_list(x: Any) -> Any:
    return torch.tensor(x.tolist())  # here


def to_numpy(x: Any) -> Any:
    return torch.from_numpy(x.numpy())  # here


def python_index(x: Any) -> Any:
    return x[int(x.argmax())]  # here


def boolean_index(x: Any) -> Any:
    return x[x > 0]  # here


def nonzero(x: Any) -> Any:
    return x.nonzero()  # here


def draws(x: Any) -> Any:
    return torch.poisson(x)  # here


def python_random(x: Any) -> Any:
    return x + random.random()  # here


def counts(x: Any) -> Any:
    counter[0] += 1
    return x * counter[0]  # here


def changes_input(x: Any) -> Any:
    x[0] += 1  # here
    return x


def no_rule(x: Any) -> Any:
    return torch.fft.fft(x).abs()  # here


def higher_order(x: Any) -> Any:
    return torch._higher_order_ops.map(lambda a: a + 1, x)  # here


def own_mistake(x: Any) -> Any:
    return x @ x  # here


CASES = [
    (branch, r"torch\.where"),
    (item, r"\.item\(\).*torch\.where"),
    (to_list, r"torch\.where"),
    (to_numpy, r"torch\.where"),
    (python_index, r"torch\.where"),
    (boolean_index, r"depends on the data.*torch\.where\(mask, x, 0\)"),
    (nonzero, r"aten\.nonzero.*depends on the data"),
    (draws, r"random op aten\.poisson.*torch\.rand"),
    (python_random, r"random number.*tensor input"),
    (counts, r"counter.*tensor input"),
    (changes_input, r"input 'x' is changed in place.*x\.clone\(\)"),
    (no_rule, r"aten\._fft_r2c.*no translation to ONNX"),
    (higher_order, r"map.* cannot be captured; write a Python loop"),
    (own_mistake, r"RuntimeError: a and b must have same reduction dim.*sample inputs: x float32\[4, 3\]"),
]


@pytest.mark.parametrize(("fn", "message"), CASES, ids=[fn.__name__ for fn, _ in CASES])
def test_refusal_names_the_line(fn: Any, message: str) -> None:
    lines, first = inspect.getsourcelines(fn)
    line = first + next(i for i, text in enumerate(lines) if "# here" in text)
    with pytest.raises(CaptureError, match=rf"test_capture_errors\.py:{line}: .*{message}") as caught:
        capture(fn, X)
    assert "\n" not in str(caught.value)


def test_unknown_op_names_the_module_path() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.fft.fft(x).abs()

    model = nn.Sequential(nn.Linear(3, 3), Spectrum())
    with pytest.raises(CaptureError, match=r"in module 1 has no translation"):
        capture(model, X)


def test_symbolic_dim_that_the_function_fixes() -> None:
    with pytest.raises(CaptureError, match=r"symbolic dimension 'b' is used as the fixed number 4"):
        capture(lambda x: x.reshape(2, 6), X, dynamic={"x": {0: "b"}})


def test_branch_on_a_symbolic_dim() -> None:
    def fn(x: Any) -> Any:
        return x if x.shape[0] > 3 else -x

    with pytest.raises(CaptureError, match=r"test_capture_errors\.py:\d+: .*branch on a symbolic dimension \(b>3\)"):
        capture(fn, X, dynamic={"x": {0: "b"}})


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ({"y": {0: "b"}}, r"no input 'y'; the inputs are x"),
        ({"x": [0]}, r"as in \{\"x\": \{0: \"batch\"\}\}; 'x' has \[0\]"),
        ("batch", r"dynamic is an input's name with its open dimensions.*, not 'batch'"),
        ({"x": {"0": "b"}}, r"'x' has '0': 'b'"),
        ({"x": {0: 3}}, r"'x' has 0: 3"),
        ({"x": {2: "b"}}, r"input 'x' has 2 dimensions"),
        ({"x": {0: "b", 1: "b"}}, r"'b' is 4 elsewhere but 3 in dimension 1 of input 'x'"),
    ],
)
def test_wrong_dynamic(dynamic: Any, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        capture(lambda x: x, X, dynamic=dynamic)


def test_symbolic_dim_of_size_one() -> None:
    with pytest.raises(CaptureError, match=r"at least 2"):
        capture(lambda x: x, X[:1], dynamic={"x": {0: "b"}})


def test_wrong_number_of_arguments() -> None:
    with pytest.raises(CaptureError, match=r"takes 1 positional arguments but 2 sample inputs"):
        capture(branch, (X, X))


def test_no_result() -> None:
    for fn in (lambda x: x.shape[0], lambda x: (), lambda x: {"a": "text"}):
        with pytest.raises(CaptureError, match=r"test_capture_errors\.py:\d+: the function returns .*holds no tensor"):
            capture(fn, X)
    with pytest.raises(CaptureError, match=r"returns None \(is a return missing\?\)"):
        capture(lambda x: None, X)


def test_not_a_function() -> None:
    with pytest.raises(CaptureError, match="not a function"):
        capture(3, X)  # type: ignore[arg-type]
    with pytest.raises(CaptureError, match=r"^a torch.Tensor is not a function or nn.Module$"):
        capture(torch.zeros(100, 100), X)
    with pytest.raises(CaptureError, match=r"^ReLU is a class; pass an instance of it"):
        capture(nn.ReLU, X)


def test_a_sample_that_does_not_fit_names_module_and_shapes() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(4, 2))
    with pytest.raises(CaptureError, match=r"module '1': capture failed: .*\(the sample inputs: input float"):
        capture(model, X)
    with pytest.raises(CaptureError, match=r"test_capture_errors\.py:\d+: capture failed in module 'model\.1': "):
        capture(lambda x: model(x), X)


def test_frames_of_pfvm_are_no_source(tmp_path: Any) -> None:
    from pfvm.tools.export import export

    (tmp_path / "net.py").write_text(
        "import torch\nmodel = torch.nn.Sequential(torch.nn.ReLU())\nsample = torch.ones(3)\n"
    )
    export(f"{tmp_path}/net.py:model", tmp_path / "m.onnx", "sample")
    (node,) = onnx.load(tmp_path / "m.onnx").graph.node
    sources = {p.key: p.value for p in node.metadata_props}
    assert sources["pfvm.module"] == "0"
    assert not re.search(r"export\.py|cli\.py|unknown", sources.get("pfvm.source", ""))


def test_weights_without_values_or_shape() -> None:
    with pytest.raises(CaptureError, match=r"'weight' of a lazy module has no shape"):
        capture(nn.LazyLinear(3), X)
    with pytest.raises(CaptureError, match="meta"):
        capture(nn.Linear(3, 2, device="meta"), X)
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(CaptureError, match=r"sparse_coo tensor has no ONNX form; use its to_dense"):
        capture(lambda x: sparse @ x.T, X)


def test_an_object_that_may_hide_tensors() -> None:
    class Box:
        def __init__(self, value: Any) -> None:
            self.value = value

    with pytest.raises(CaptureError, match=r"'output' is a .*Box, which may hide tensors"):
        capture(lambda x: Box(x), X)
    with pytest.raises(CaptureError, match=r"'b' is a .*Box"):
        capture(lambda b: b.value + 1, Box(X))


def test_a_tensor_kept_from_the_first_call() -> None:
    class Caching(nn.Module):
        table = None

        def forward(self, x: Any) -> Any:
            if self.table is None:
                self.table = torch.ones(3) * 2
            return x * self.table

    model = Caching()
    with pytest.raises(CaptureError, match="call it once before"):
        capture(model, X)
    assert model.table is None
    model(X)
    assert [n.op_type for n in capture(model, X).model.graph] == ["Mul"]


def test_torchscript_module() -> None:
    with pytest.raises(CaptureError, match="TorchScript"):
        capture(torch.jit.script(nn.ReLU()), X)


def test_capture_works_after_a_failure() -> None:
    with pytest.raises(CaptureError):
        capture(branch, X)
    assert re.match("Neg", next(iter(capture(lambda x: -x, X).model.graph)).op_type)
