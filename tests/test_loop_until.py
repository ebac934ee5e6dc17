"""Promise: `pfvm loop --until 'loss < 0.1'` ends behind the first such step, as K calls of the step would be ended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pfvm
import pytest
from pfvm.compiler.signature import read_manifest
from pfvm.errors import OptionError, UnsupportedOpError
from pfvm.tools import cli
from test_loop import STATE, STEP, K, feeds, one_by_one, step_model

DEVICES = ["pfvm:cpu", "xla:cpu"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("steps", [1, 2, K])
def test_it_ends_behind_the_first_step_that_meets_the_condition(steps: int, device: str) -> None:
    """Bit for bit what calls of single steps give, with one program and no host segment."""
    losses = [float(out["loss"]) for out in one_by_one("pfvm:cpu")]
    bound = -1.0 if steps == K else losses[steps - 1] * (1 + 1e-12)
    results = one_by_one(device, lambda loss: float(loss) <= bound)
    count = len(results)
    exe = pfvm.load(pfvm.loop(step_model(), K, until=f"loss <= {bound!r}"), device)
    many = exe(feeds())
    assert many["steps"] == count == next((i + 1 for i, x in enumerate(losses) if x <= bound), K)
    for name in ("loss", "before", "same", "drawn"):
        np.testing.assert_array_equal(many[name][:count], np.stack([out[name] for out in results]), err_msg=name)
        rest = many[name][count:]
        assert np.isnan(rest).all() if rest.dtype.kind == "f" else not rest.any()
    for name in ("w_new", "m_new", "step_new"):
        np.testing.assert_array_equal(many[name], results[-1][name], err_msg=name)
    if device == "xla:cpu":
        (segment,) = exe.segments
        (text,) = exe.hlo()
        assert (segment.kind, exe.compilations) == ("device", 1)
        assert text.count(" while(") == 1


def test_the_interface_gains_one_output() -> None:
    plain, ended = pfvm.loop(step_model(), K), pfvm.loop(step_model(), K, until="loss < 0.1")
    onnx.checker.check_model(ended, full_check=True)
    assert list(ended.graph.input) == list(plain.graph.input)
    assert list(ended.graph.output)[:-1] == list(plain.graph.output)
    assert ended.graph.output[-1].name == "steps"
    import onnx_ir as ir

    assert read_manifest(ir.from_proto(ended)) == read_manifest(ir.from_proto(plain))
    assert [node.op_type for node in ended.graph.node] == ["Loop"]
    many = pfvm.load(pfvm.optimize(ended))(feeds())
    np.testing.assert_array_equal(many["loss"], pfvm.load(ended)(feeds())["loss"])


def test_a_step_with_an_output_of_the_same_name() -> None:
    model = step_model(STEP.replace("int64 before", "int64 steps").replace("before = ", "steps = "))
    assert [v.name for v in pfvm.loop(model, 2, until="loss < 0").graph.output][-1] == "steps_1"


@pytest.mark.parametrize(
    ("until", "message"),
    [
        ("los < 0.1", r"no output 'los'; did you mean 'loss'.*'loss', 'before', 'same', 'drawn' besides its state"),
        ("same < 0.1", r"'same' is DOUBLE\[3\], expected one float"),
        ("before < 3", r"'before' is INT64\[\], expected one float"),
        ("loss", r"expected OUTPUT < NUMBER"),
        ("loss < small", r"expected OUTPUT < NUMBER"),
        ("loss < nan", r"expected OUTPUT < NUMBER"),
        ("loss == 0", r"expected OUTPUT < NUMBER"),
    ],
)
def test_conditions_that_do_not_fit(until: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        pfvm.loop(step_model(), K, until=until)


def test_models_that_do_not_fit() -> None:
    with pytest.raises(UnsupportedOpError, match=r"until needs opset 16, and the model has 13"):
        pfvm.loop(step_model(STEP.replace('"" : 18', '"" : 13')), K, until="loss < 0.1")
    text = STEP.replace("int64 before", "double[b] before").replace("before = Identity (step)", "before = Identity (d)")
    with pytest.raises(UnsupportedOpError, match=r"output 'before' has the open shape \[b\].*fix the shape"):
        pfvm.loop(step_model(text, STATE), K, until="loss < 0.1")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "step.onnx", tmp_path / "many.onnx"
    onnx.save(step_model(), source)
    assert cli.run_command(["loop", str(source), "-k", "3", "--until", "loss < 0.5", "-o", str(target)]) == 0
    assert "at most 3 steps a call, until loss < 0.5" in " ".join(capsys.readouterr())
    assert onnx.load(target).graph.output[-1].name == "steps"
