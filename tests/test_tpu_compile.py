"""TPU without a TPU: models compile for it with libtpu, and the report says what its compiler decided."""

from __future__ import annotations

import json

import onnx
import pytest

pytest.importorskip("jax")
pytest.importorskip("libtpu")

import zstandard
from pfvm.compiler.plan.text import format_l3ir, parse_l3ir
from pfvm.errors import DeviceMemoryError, InputError, NoDeviceError, OptionError, PfvmError
from pfvm.runtime.topology import chips
from tpu_support import cnn, compiled, mlp, model, report

pytestmark = pytest.mark.tpu
MLP_FLOPS = 2 * 128 * 256 * 512 + 2 * 128 * 512 * 64


def total(found: dict, *, flops: int | None = None) -> int:
    """The cycles of a report that has all that it should have."""
    assert found["cycles_missing"] is None, found["cycles_missing"]
    assert found["cycles_source"] == "compiler"
    assert found["time_us"] >= found["least_time_us"]
    assert found["lower_bound"]["ratio"] is None or found["lower_bound"]["ratio"] >= 1
    assert 0 < found["peak_memory"]["HBM"]["bytes_per_cell"] < found["peak_memory"]["HBM"]["size_per_cell"]
    assert flops is None or found["flops"] == flops
    return found["vsm_cycles"]


def test_an_mlp_has_cycles_time_and_memory() -> None:
    found = report(mlp())
    cycles = total(found, flops=MLP_FLOPS)
    assert found["core_freq"] == pytest.approx(1503, abs=0.1)
    assert found["time_us"] == pytest.approx(cycles / found["core_freq"])
    assert "clock = peak / (2 · cells · units)" in found["time_formula"]
    assert found["memory"]["argument_size"] >= 4 * (128 * 256 + 256 * 512 + 512 * 64)
    assert (found["precision"], found["effort"], found["emulated"]) == ("default", "fast", False)


def test_float32_products_cost_what_their_precision_says() -> None:
    wide = model("g (float[1024,2048] x) => (float[1024,2048] y) { y = MatMul(x, a) }", a=(2048, 2048))
    default, high, highest = (total(report(wide, precision=p)) for p in ("default", "high", "highest"))
    assert default < high < highest
    assert highest > 1.4 * default  # six products for one; at this effort memory takes the most


def test_bfloat16_moves_fewer_bytes() -> None:
    plain, short = (report(mlp(), bf16=flag) for flag in (False, True))
    assert short["bf16"] and total(short, flops=MLP_FLOPS) < total(plain)
    assert short["memory"]["argument_size"] == plain["memory"]["argument_size"] - 2 * (256 * 512 + 512 * 64)


def test_convolutions_are_the_tpu_s_own() -> None:
    """The shifts and products that a CPU is given would be several times slower there."""
    executable = compiled(cnn(), shapes={"x": (8, 3, 32, 32)})
    text = executable.lowered.exported.mlir_module()
    assert text.count("stablehlo.convolution") == 2
    assert "feature_group_count = 16" in text
    assert executable.arguments()[0]["name"] == "x"
    found = report(cnn(), shapes={"x": (8, 3, 32, 32)})
    total(found)
    assert found["flops"] >= 2 * 8 * 16 * 27 * 30 * 30


def test_open_dimensions_need_a_shape() -> None:
    with pytest.raises(InputError, match=r"xla:tpu@v5e:1x1: input 'x' .* give --shape x="):
        report(cnn())
    with pytest.raises(OptionError, match="does not fit"):
        report(cnn(), shapes={"x": (8, 4, 32, 32)})


def test_a_transformer_layer() -> None:
    layer = model(
        """g (float[2,64,128] x) => (float[2,64,128] y) <int64[4] heads = {2,64,4,32}, int64[3] flat = {2,64,128}>
{ q0 = MatMul(x, q)  q1 = Reshape(q0, heads)  q2 = Transpose<perm=[0,2,1,3]>(q1)
  k0 = MatMul(x, k)  k1 = Reshape(k0, heads)  k2 = Transpose<perm=[0,2,3,1]>(k1)
  v0 = MatMul(x, v)  v1 = Reshape(v0, heads)  v2 = Transpose<perm=[0,2,1,3]>(v1)
  s = MatMul(q2, k2)  p = Softmax<axis=-1>(s)  z = MatMul(p, v2)  z1 = Transpose<perm=[0,2,1,3]>(z)
  z2 = Reshape(z1, flat)  o1 = MatMul(z2, o)  h = Add(x, o1)  n = LayerNormalization<axis=-1>(h, g)
  u1 = MatMul(n, u)  e = Gelu(u1)  d1 = MatMul(e, d)  y = Add(h, d1) }""",
        q=(128, 128), k=(128, 128), v=(128, 128), o=(128, 128), g=(128,), u=(128, 512), d=(512, 128),
    )  # fmt: skip
    found = report(layer, effort="full")
    total(found)
    assert not found["cycles"]["by_op"].get("custom-call")


def test_a_loop_is_its_body_times_its_trips() -> None:
    text = """g (float[128,256] x) => (float[128,256] y) <int64 n = {TRIPS}, bool go = {1}>
{ y = Loop<body = b (int64 i, bool c, float[128,256] s) => (bool k, float[128,256] t)
  { k = Identity(c)  m = MatMul(s, a)  t = Tanh(m) }>(n, go, x) }"""
    few, many = (report(model(text.replace("TRIPS", str(n)), a=(256, 256))) for n in (8, 64))
    assert list(few["loops"].values()) == [8] and list(many["loops"].values()) == [64]
    body = (total(many) - total(few)) / 56
    assert body > 1000
    assert total(few) == pytest.approx(8 * body, rel=0.3)
    assert many["flops"] == 64 * 2 * 128 * 256 * 256


def test_a_loop_of_unknown_length_has_no_total() -> None:
    found = report(
        model(
            """g (float[128,256] x, int64 n) => (float[128,256] y) <bool go = {1}, float limit = {3}>
{ y = Loop<body = b (int64 i, bool c, float[128,256] s) => (bool k, float[128,256] t)
  { m = MatMul(s, a)  t = Tanh(m)  e = ReduceSum<keepdims=0>(t)  k = Less(e, limit) }>(n, go, x) }""",
            a=(256, 256),
        )
    )
    assert (found["vsm_cycles"], found["time_us"], found["flops"]) == (None, None, None)
    assert "are not known before it runs" in found["cycles_missing"]
    assert found["modelled_cycles"] > 0


def test_a_branch_and_a_scan() -> None:
    branch = """g (bool p, float[128,256] x) => (float[128,256] y)
{ y = If<then_branch = t () => (float[128,256] m) { m1 = MatMul(x, a)  m = MatMul(m1, a) },
         else_branch = e () => (float[128,256] n) { n = Relu(x) }>(p) }"""
    found = report(model(branch, a=(256, 256)))
    total(found, flops=2 * 2 * 128 * 256 * 256)
    assert found["conditionals"] == 1
    scan = """g (float[128,256] s, float[6,128,256] xs) => (float[128,256] last, float[6,128,256] ys)
{ last, ys = Scan<num_scan_inputs=1,
                  body = b (float[128,256] h, float[128,256] x) => (float[128,256] n, float[128,256] z)
  { m = MatMul(h, a)  u = Add(m, x)  n = Tanh(u)  z = Identity(n) }>(s, xs) }"""
    found = report(model(scan, a=(256, 256)))
    total(found, flops=6 * 2 * 128 * 256 * 256)
    assert list(found["loops"].values()) == [6]


def test_a_quantized_product_has_a_total() -> None:
    """Its operands are bytes in memory; the product is that of the numbers that they stand for."""
    text = """g (float[512,1024] x) => (float[512,1024] y) <float s = {0.02}, int8 z = {0}>
{ q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  w = DequantizeLinear(b, s, z)  m = MatMul(d, w)
  r = QuantizeLinear(m, s, z)  y = DequantizeLinear(r, s, z) }"""
    proto = model(text)
    weights = onnx.helper.make_tensor("b", onnx.TensorProto.INT8, [1024, 1024], [1] * (1024 * 1024))
    proto.graph.initializer.append(weights)
    total(report(proto), flops=2 * 512 * 1024 * 1024)


def test_too_little_memory_is_said_before_anyone_rents_a_tpu() -> None:
    large = model("g (float[40000,40000] x) => (float[40000,40000] y) { a = Exp(x)  y = MatMul(a, x) }")
    with pytest.raises(
        DeviceMemoryError, match=r"v2:1x1: out of memory: the program needs 1[\d.]+ GiB of HBM and 7.48 GiB"
    ):
        report(large, "v2:1x1")


def test_it_cannot_be_run_and_says_where_it_can() -> None:
    with pytest.raises(NoDeviceError, match=r"xla:tpu@v5e:1x1 is compiled for, not run on: running needs a TPU v5e"):
        compiled(mlp())({"x": None})


@pytest.mark.parametrize("chip", chips().values(), ids=lambda chip: chip.name)
def test_every_generation_compiles(chip) -> None:
    executable = compiled(mlp(), f"{chip.name}:{'x'.join('1' * chip.dims)}")
    assert executable.program.device_kind == chip.kind
    assert executable.topology.devices == chip.devices


def test_a_topology_that_libtpu_does_not_know_is_refused() -> None:
    with pytest.raises(PfvmError, match=r"xla:tpu@v5e:17x23"):
        _ = compiled(mlp(), "v5e:17x23").program


def test_compile_writes_all_that_the_compiler_made(pfvm, tmp_path) -> None:
    onnx.save(cnn(), tmp_path / "m.onnx")
    folder = tmp_path / "out"
    run = pfvm("compile", tmp_path / "m.onnx", "--device", "xla:tpu@v5e:1x1", "--artifacts", folder, "--shape",
               "x=8,3,32,32", "--effort", "fast", "--precision", "high", "--explain")  # fmt: skip
    assert run.code == 0, run.err
    assert "precision high, effort fast" in run.out and "segment 0: 7 nodes on xla:tpu@v5e:1x1" in run.out
    assert {path.name for path in folder.iterdir()} == {
        "model.onnx", "pfvm.onnx", "passes.json", "executable.bin", "arguments.json", "scheduled_hlo.txt", "l3ir.txt",
        "l3ir_stripped.onnx.zst", "report.json",
    }  # fmt: skip
    assert "is_scheduled=true" in (folder / "scheduled_hlo.txt").read_text(encoding="utf-8").split("\n")[0]
    text = (folder / "l3ir.txt").read_text(encoding="utf-8")
    nodes = parse_l3ir(text)
    assert format_l3ir(nodes) == text
    assert any(":T(8,128)" in (value.get("layout") or "") for node in nodes for value in node.values())
    assert {value.get("loc") for node in nodes for value in node.values()} <= {"HBM", "VMEM", "SMEM", "IMM"}
    stated = sum(int(flag[7:]) for node in nodes for flag in node.flags if flag.startswith("cycles="))
    found = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert stated == found["modelled_cycles"] > 0
    assert sum(found["nodes"].values()) == len(nodes)
    data = zstandard.ZstdDecompressor().decompress((folder / "l3ir_stripped.onnx.zst").read_bytes())
    graph = onnx.load_from_string(data).graph
    assert [node.op_type for node in graph.node] == [node.op for node in nodes]
    assert any("pfvm.foreign_placement" in {p.key for p in value.metadata_props} for value in graph.value_info)
    assert pfvm("l3ir", "check", folder).code == 0
    arguments = json.loads((folder / "arguments.json").read_text(encoding="utf-8"))["arguments"]
    assert [a["kind"] for a in arguments] == ["input", "weight", "weight", "weight"]


def test_several_topologies_are_one_table_to_choose_by(pfvm, tmp_path) -> None:
    large = model("g (float[N,40000] x) => (float[N,N] y) { t = Transpose(x)  y = MatMul(x, t) }")
    onnx.save(large, tmp_path / "m.onnx")
    folder = tmp_path / "out"
    run = pfvm("compile", tmp_path / "m.onnx", "--device", "xla:tpu@v2:1x1,v5p:1x1x1,v6e:1x1", "--artifacts", folder,
               "--shape", "x=40000,40000", "--effort", "fast")  # fmt: skip
    assert run.code == 0, run.err
    rows = {line.split()[0]: line for line in run.out.splitlines() if line.startswith("xla:tpu@")}
    assert any(line.startswith("xla:tpu@v2:1x1") and line.endswith("no") for line in run.out.splitlines())
    assert "out of memory: the program needs" in run.out
    assert "xla:tpu@v6e:1x1: no time: the published size and number" in run.out
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"v5p-1x1x1", "v6e-1x1"}
    assert len(rows) >= 3
