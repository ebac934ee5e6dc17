"""Promise: of the two forms of narrow convolutions a TPU gets the one of fewer cycles, by its compiler's estimate."""

from __future__ import annotations

import json

import onnx_ir as ir
import pytest

pytest.importorskip("jax")
pytest.importorskip("libtpu")

from pfvm.runtime.device import device_files, load_executable, parse_device
from pfvm.runtime.xla.tpu_choice import best_of
from test_pass_tpu_pair_columns import net
from test_pass_tpu_split_pools import step

pytestmark = pytest.mark.tpu


def forms(model, effort: str = "full") -> dict | None:
    device = parse_device("xla:tpu@v2:1x1")
    executable = load_executable(ir.from_proto(model), device, effort=effort)
    return json.loads(device_files(executable, device, dict)["report.json"])["forms"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        net((64, 3, 3, 3), (64, 64, 3, 3), (56, 48)),
        net((64, 3, 3, 3), (64, 64, 3, 3), (56, 48), pool=False),
        net((32, 16, 5, 5), (96, 32, 3, 3), (24, 64)),
        net((8, 4, 3, 3), (8, 8, 3, 3), (16, 16)),
    ],
    ids=["as in VGG", "without a pool", "other widths", "small"],
)
def test_the_form_of_fewer_cycles_is_chosen(model) -> None:
    found = forms(model)
    assert found is not None
    assert set(found["cycles"]) == {"as compiled", "tpu-pair-columns"}
    cycles = found["cycles"]
    known = None not in cycles.values()  # the compiler states no cycles for some forms of reshape
    assert found["chosen"] == (min(cycles, key=cycles.get) if known else "as compiled")


@pytest.mark.slow
def test_the_narrow_convolutions_of_vgg_are_paired() -> None:
    assert forms(net((64, 3, 3, 3), (64, 64, 3, 3), (112, 112)))["chosen"] == "tpu-pair-columns"


@pytest.mark.slow
@pytest.mark.parametrize("weights", [((64, 3, 3, 3), (64, 64, 3, 3)), ((128, 64, 3, 3),)], ids=["pairs", "four"])
def test_a_pool_and_its_gradient_have_an_estimate(weights) -> None:
    """As it is, the compiler states no cycles for the gradient of a pool."""
    found = forms(step((8, weights[0][1], 56, 48), weights, of_image=False))
    assert found is not None and found["cycles"]["as compiled"] is None
    total, known = found["cycles"]["tpu-split-pools"], found["at_least"]["as compiled"]
    assert found["chosen"] == ("tpu-split-pools" if total <= known else "as compiled")


@pytest.mark.parametrize(
    ("cycles", "at_least", "best"),
    [
        ({"a": 9, "b": 8}, {}, "b"),
        ({"a": 8, "b": None}, {"b": 5}, "a"),
        ({"a": None, "b": 8}, {"a": 8}, "b"),
        ({"a": None, "b": 8}, {"a": 7}, "a"),
        ({"a": None, "b": None}, {"a": 7, "b": 1}, "a"),
    ],
)
def test_a_form_without_a_total_loses_to_what_takes_less_than_is_known_of_it(cycles, at_least, best: str) -> None:
    assert best_of(list(cycles), cycles, at_least) == best


def test_nothing_is_tried_where_there_is_nothing_to_choose() -> None:
    assert forms(net((128, 3, 3, 3), (128, 128, 3, 3), (8, 8))) is None
    assert forms(net((8, 4, 3, 3), (8, 8, 3, 3), (16, 16)), effort="fast") is None
