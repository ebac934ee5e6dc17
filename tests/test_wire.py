"""Promise: weights are neither parsed nor copied, and a file is the same, byte for byte, as if they had been."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from pfvm.compiler import wire
from pfvm.compiler.exporter import to_proto, write_model
from pfvm.compiler.importer import read_model
from pfvm.errors import InvalidModelError
from pfvm.passes import tensor_bytes

FLOATS = np.arange(2048, dtype=np.float32).reshape(32, 64)


def model(*tensors: TensorProto) -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", [t.name], [f"{t.name}_out"]) for t in tensors]
    outputs = [helper.make_tensor_value_info(f"{t.name}_out", t.data_type, list(t.dims)) for t in tensors]
    graph = helper.make_graph(nodes, "g", [], outputs, list(tensors), doc_string="the graph")
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10, producer_name="p")
    helper.set_model_props(made, {"a": "b"})
    return made


def typed(dtype: int, name: str) -> TensorProto:
    size = 8192 * 2 // helper.tensor_dtype_to_np_dtype(dtype).itemsize
    return TensorProto(name=name, data_type=dtype, dims=[2, size // 2], raw_data=bytes(range(256)) * 64)


def weights_of(data: bytes) -> wire.Weights:
    return wire.cut(data)[1]


def test_large_weights_are_views_of_the_file() -> None:
    small = numpy_helper.from_array(FLOATS[0], "small")
    data = model(small, numpy_helper.from_array(FLOATS, "w")).SerializeToString()
    light, weights = wire.cut(data)
    assert list(weights) == [1] and weights[1][0] == ir.DataType.FLOAT and weights[1][1].obj is data
    assert len(light) < len(data) - FLOATS.nbytes + 8
    parsed = onnx.ModelProto.FromString(light)
    assert parsed.graph.initializer[1].dims == [32, 64] and not parsed.graph.initializer[1].raw_data
    value = read_model(data).graph.initializers["w"]
    assert value.const_value is not None and np.array_equal(value.const_value.numpy(), FLOATS)
    assert value.const_value.numpy().base is not None


@pytest.mark.parametrize("dtype", [*range(1, 8), *range(9, 14), 16, 17, 18, 19, 20, 21, 22, 23])
def test_every_type_is_written_as_protobuf_would(dtype: int, tmp_path: Path) -> None:
    if dtype == TensorProto.STRING:
        tensor = helper.make_tensor("w", dtype, [2000], [b"abc"] * 2000)
    elif dtype == TensorProto.BOOL:
        tensor = numpy_helper.from_array(np.tile(FLOATS > 7, 4), "w")
    else:
        tensor = typed(dtype, "w")
        if dtype in (TensorProto.UINT4, TensorProto.INT4, TensorProto.FLOAT4E2M1):
            tensor.dims[1] = 16384
    tensor.doc_string = "a weight"
    given = model(tensor, numpy_helper.from_array(FLOATS, "other"))
    onnx.save(given, tmp_path / "in.onnx")
    read = read_model(tmp_path / "in.onnx")
    write_model(read, tmp_path / "out.onnx")
    written = (tmp_path / "out.onnx").read_bytes()
    assert written == to_proto(read).SerializeToString(deterministic=True)
    kept = onnx.ModelProto.FromString(written).graph.initializer[0]
    assert kept == tensor
    content = read.graph.initializers["w"].const_value
    assert content is not None
    if dtype != TensorProto.STRING:
        assert bytes(tensor_bytes.buffer(content)) == tensor.raw_data


def test_writing_is_what_protobuf_writes() -> None:
    whole = model(numpy_helper.from_array(FLOATS[0], "small"), numpy_helper.from_array(FLOATS, "w"))
    whole.graph.initializer[1].doc_string = "a weight"
    hollow = onnx.ModelProto()
    hollow.CopyFrom(whole)
    hollow.graph.initializer[1].raw_data = b""
    file = io.BytesIO()
    wire.write(file, hollow, {"w": memoryview(FLOATS.tobytes())})
    assert file.getvalue() == whole.SerializeToString(deterministic=True)


def test_unusual_messages_are_left_to_protobuf() -> None:
    plain = model(numpy_helper.from_array(FLOATS, "w"))
    data = plain.SerializeToString()
    twice = data + onnx.ModelProto(graph=onnx.GraphProto(name="more")).SerializeToString()
    outside = model(TensorProto(name="w", data_type=1, dims=[32, 64], data_location=TensorProto.EXTERNAL))
    outside.graph.initializer[0].raw_data = FLOATS.tobytes()
    untyped = model(TensorProto(name="w", dims=[32, 64], raw_data=FLOATS.tobytes()))
    for each in (twice, outside.SerializeToString(), untyped.SerializeToString(), data[:-4000], b"", b"\xff" * 20):
        assert wire.cut(each) == (each, {})
    two = model(numpy_helper.from_array(FLOATS, "w"), numpy_helper.from_array(FLOATS + 1, "w"))
    del two.graph.node[1:], two.graph.output[1:]
    assert len(weights_of(two.SerializeToString())) == 2
    read_as_before = read_model(two).graph.initializers["w"].const_value
    read = read_model(two.SerializeToString()).graph.initializers["w"].const_value
    assert read is not None and read_as_before is not None
    assert np.array_equal(read.numpy(), read_as_before.numpy())


def test_the_size_is_checked() -> None:
    short = numpy_helper.from_array(FLOATS, "w")
    short.dims[0] = 33
    with pytest.raises(InvalidModelError, match=r"initializer 'w': float\[33, 64\] needs 8448 bytes, it has 8192"):
        read_model(model(short).SerializeToString())
