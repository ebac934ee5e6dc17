"""Promise: compile, run and check work as the manual says; exit code 1 is a difference, 2 an error of one line."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import typer
from cli_support import TEXT, Pfvm, one_line
from onnx import TensorProto, helper
from pfvm.compiler.options import Options
from pfvm.tools import cli


def test_version_and_help(pfvm: Pfvm) -> None:
    import pfvm as package

    assert pfvm("--version").out == f"pfvm {package.__version__}\n"
    shown = pfvm("--help").out
    for command in ("export", "compile", "grad", "loop", "plan", "run", "check", "passes", "ops", "devices", "view"):
        assert f"  {command} " in shown
    assert "no such option" in one_line(pfvm("run", "--nope")).lower()
    assert "frobnicate" in one_line(pfvm("frobnicate"))
    bare = pfvm()
    assert (bare.code, bare.out, bare.err) == (2, shown, "")


def test_compile(pfvm: Pfvm, model: Path, tmp_path: Path) -> None:
    target, artifacts = tmp_path / "out.onnx", tmp_path / "stages"
    result = pfvm("compile", model, "-o", target, "--artifacts", artifacts, "-O2", "--verify")
    assert result.code == 0
    assert result.out == ""
    assert "3 → 1 nodes" in result.err.partition("\n")[0]
    assert [n.op_type for n in onnx.load(target).graph.node] == ["Mul"]
    assert {"model.onnx", "pfvm.onnx", "passes.json"} <= {p.name for p in artifacts.iterdir()}


def test_every_option_of_the_schema_is_a_flag() -> None:
    """One schema: the flags of `compile` are its fields, and else the model, the option file, --json and --help-all."""
    parameters = inspect.signature(cli.compile_command).parameters
    assert set(parameters) == {*Options.model_fields, "model", "option_json", "as_json", "help_all"}
    command = typer.main.get_command(cli.app).commands["compile"]  # type: ignore[attr-defined]
    flags = {parameter.name: parameter.opts for parameter in command.params}
    for field in set(Options.model_fields) - {"passes"}:
        assert "--" + field.replace("_", "-") in flags[field]
    assert "-p" in flags["passes"]


def test_passes_options_and_disabling(pfvm: Pfvm, model: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    flags = ("-p", "eliminate-identity", "-p", "fold-constants{slack=1KiB}", "--disable", "eliminate-identity")
    assert pfvm("compile", model, "-o", target, "-O", "0", *flags).code == 0
    assert [n.op_type for n in onnx.load(target).graph.node] == ["Identity", "Mul"]
    assert "there is no pass 'nope'" in one_line(pfvm("compile", model, "-o", target, "-p", "nope"))
    bad = one_line(pfvm("compile", model, "-o", target, "-p", "fold-constants{nope=1}"))
    assert "no option 'nope'" in bad
    assert "there is no pass 'nope'" in one_line(pfvm("compile", model, "-o", target, "--disable", "nope"))
    assert "less than or equal to 3" in one_line(pfvm("compile", model, "-o", target, "-O7"))


def test_option_file(pfvm: Pfvm, model: Path, tmp_path: Path) -> None:
    options, artifacts = tmp_path / "options.json", tmp_path / "stages"
    options.write_text(json.dumps({"args": ["--out_onnx=<codegen_dir>/final.onnx", "--opt-level=0"]}))
    assert pfvm("compile", model, "--artifacts", artifacts, "--option-json", options).code == 0
    assert len(onnx.load(artifacts / "final.onnx").graph.node) == 3
    options.write_text('{"args": ["--nope=1"]}')
    assert "there is no option --nope" in one_line(pfvm("compile", model, "--option-json", options))
    options.write_text("{")
    assert "is not JSON" in one_line(pfvm("compile", model, "--option-json", options))


def test_flags_of_later_versions_are_named_errors(pfvm: Pfvm, model: Path) -> None:
    assert "not built" in one_line(pfvm("compile", model, "-o", "x.onnx", "--scheduler=x"))


def test_a_model_that_the_device_cannot_run_is_not_written(pfvm: Pfvm, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    target = tmp_path / "out.onnx"
    assert pfvm("compile", model, "-o", target, "--device", "xla:cpu").code == 0
    target.unlink()
    onnx.save(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 17, "com.unknown" : 1]>
            g (float[2] x) => (float[2] y) { y = com.unknown.Foo (x) }"""
        ),
        model,
    )
    assert "com.unknown::Foo" in one_line(pfvm("compile", model, "-o", target, "--device", "xla:cpu"))
    assert not target.exists()


def test_explain(pfvm: Pfvm, tmp_path: Path, model: Path) -> None:
    pytest.importorskip("jax")
    assert "give --device as well" in one_line(pfvm("compile", model, "--explain"))
    assert "one segment" in pfvm("compile", model, "--explain", "--device", "pfvm:cpu").out
    onnx.save(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 17]> g (float[n] x, string[n] s) => (float[m] y, string[n] t)
            <float zero = {0}> { b = Greater (x, zero) z = Compress (x, b) y = Exp (z) t = StringNormalizer (s) }"""
        ),
        model,
    )
    lines = pfvm("compile", model, "--explain", "--device", "xla:cpu").out.splitlines()
    assert lines[0] == "segment 0: 1 node on xla:cpu: Greater (→ 'b')"
    assert lines[1].startswith("segment 1: 2 nodes on the host (ONNX Runtime): ")
    assert lines[2].startswith("  Compress (→ 'z'): data-dependent shape (needs the value of 'b'")
    assert lines[3:] == [
        "  StringNormalizer (→ 't'): strings",
        "segment 2: 1 node on xla:cpu: Exp (→ 'y')",
    ]


def test_compile_without_a_destination(pfvm: Pfvm, model: Path) -> None:
    assert "give -o FILE or --artifacts DIR" in one_line(pfvm("compile", model))


def test_external_data_and_opset(pfvm: Pfvm, tmp_path: Path, model: Path) -> None:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [600], np.arange(600, dtype=np.float32).tobytes(), raw=True)
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[600] x) => (float[600] y) { y = Add (x, w) }'
    )
    proto.graph.initializer.append(weight)
    onnx.save(proto, model)
    target = tmp_path / "out" / "big.onnx"
    target.parent.mkdir()
    assert pfvm("compile", model, "-o", target, "--external-data", "--opset", "21").code == 0
    assert {p.name for p in target.parent.iterdir()} == {"big.onnx", "big.onnx.data"}
    assert onnx.load(target).opset_import[0].version == 21
    assert pfvm("check", model, target).code == 0


def test_run_prints_a_line_per_output(pfvm: Pfvm, model: Path) -> None:
    result = pfvm("run", model, "--seed", 3, "--shape", "x=2,3")
    assert result.code == 0
    assert "float32[2,3]" in result.out
    assert "made up, seed 3" in result.err
    assert pfvm("run", model, "--seed", 3, "--shape", "x=2,3").out == result.out
    assert pfvm("run", model, "--seed", 4, "--shape", "x=2,3").out != result.out
    assert "float32[7,3]" in pfvm("run", model, "--shape", "x=7,3").out


def test_run_with_files(pfvm: Pfvm, model: Path, tmp_path: Path) -> None:
    given, results = tmp_path / "in.npz", tmp_path / "out.npz"
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(given, x=x)
    assert pfvm("run", model, "--inputs", given, "--outputs", results).code == 0
    np.testing.assert_array_equal(np.load(results)["y"], x * [5, 7, 9])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.npz", "model.onnx", "out.npz"]


def test_files_carry_every_type(pfvm: Pfvm, tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (bfloat16[2] h, string[2] s, seq(float[k]) q) => (bfloat16[2] i, string[2] t, seq(float[k]) r)
    { i = Identity (h)  t = Identity (s)  r = Identity (q) }"""
    model, first, second = tmp_path / "m.onnx", tmp_path / "1.npz", tmp_path / "2.npz"
    onnx.save(
        onnx.parser.parse_model(
            text.replace("bfloat16[2] h, ", "").replace("bfloat16[2] i, ", "").replace("i = Identity (h)", "")
        ),
        model,
    )
    assert pfvm("run", model, "--outputs", first).code == 0
    stored = np.load(first)
    assert set(stored) == {"t", "r[0]", "r[1]"}
    np.savez(second, **{"s": stored["t"], "q[0]": stored["r[0]"], "q[1]": stored["r[1]"]})
    assert pfvm("run", model, "--inputs", second).code == 0
    half = text.replace(", string[2] s, seq(float[k]) q", "").replace(", string[2] t, seq(float[k]) r", "")
    onnx.save(onnx.parser.parse_model(half.replace("t = Identity (s)  r = Identity (q)", "")), model)
    np.savez(second, h=np.array([1.5, 2], ml_dtypes.bfloat16).view("V2"))
    assert pfvm("run", model, "--inputs", second, "--outputs", first).code == 0
    assert np.load(first)["i"].view(ml_dtypes.bfloat16).tolist() == [1.5, 2]


def test_run_on_xla_counts_compilations(pfvm: Pfvm, model: Path) -> None:
    pytest.importorskip("jax")
    result = pfvm("run", model, "--device", "xla:cpu", "--shape", "x=3,3", "--bucket", "n=2,4")
    assert result.code == 0
    assert "float32[3,3]" in result.out
    assert "\n1 compilation\n" in result.err
    assert "more than the largest bucket" in one_line(
        pfvm("run", model, "--device", "xla:cpu", "--shape", "x=5,3", "--bucket", "n=2,4")
    )
    assert "not of the form batch=1,8,32" in one_line(pfvm("run", model, "--device", "xla:cpu", "--bucket", "n"))
    assert "no option 'bucket'" in one_line(pfvm("run", model, "--bucket", "n=2"))
    assert "no option 'max_compilations'" in one_line(pfvm("run", model, "--max-compilations", "2"))


def test_run_errors(pfvm: Pfvm, model: Path, tmp_path: Path) -> None:
    assert "known devices: pfvm:cpu" in one_line(pfvm("run", model, "--device", "tpu"))
    assert "xla:tpu" in one_line(pfvm("run", model, "--device", "xla:tpu"))
    assert "expected NAME=DIM" in one_line(pfvm("run", model, "--shape", "x:1"))
    assert "does not fit float[n,3]" in one_line(pfvm("run", model, "--shape", "x=1,4"))
    assert "No such file" in one_line(pfvm("run", model, "--inputs", tmp_path / "none.npz"))
    junk = tmp_path / "junk.npz"
    junk.write_text("junk")
    assert "not an .npz file" in one_line(pfvm("run", model, "--inputs", junk))
    np.savez(tmp_path / "wrong.npz", x=np.zeros((2, 3)))
    assert "expected dtype float32, got float64" in one_line(pfvm("run", model, "--inputs", tmp_path / "wrong.npz"))
    assert "does not exist" in one_line(pfvm("run", model, "--custom-ops-lib", "none.so"))
    np.save(tmp_path / "a.npy", np.zeros((2, 3), np.float32))
    assert "one array without a name" in one_line(pfvm("run", model, "--inputs", tmp_path / "a.npy"))
    assert "no option 'threads'" in one_line(pfvm("run", model, "--threads", 1, "--device", "xla:cpu"))
    assert pfvm("run", model, "--threads", 1).code == 0


def test_check_exit_codes(pfvm: Pfvm, model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    onnx.save(onnx.parser.parse_model(TEXT.replace("{4,5,6}", "{4,5,7}")), other)
    same = pfvm("check", model, model)
    assert (same.code, same.out.splitlines()[0]) == (0, "equal")
    different = pfvm("check", model, other, "--nodes")
    assert (different.code, different.out.splitlines()[0]) == (1, "not equal")
    assert "first node that differs: " in different.out
    assert "'c': " in different.out
    assert pfvm("check", model, other, "--rtol", "0.5").code == 0
    assert pfvm("check", model, "--device-b", "pfvm:cpu").code == 0
    assert "'--rtol'" in one_line(pfvm("check", model, other, "--rtol", "-1"))
    assert "neither" in one_line(pfvm("check", model, other, "--threads", "2"))
    one_line(pfvm("check", model, tmp_path / "none.onnx"))
    one_line(pfvm("check", model))


def test_debug_shows_the_traceback(pfvm: Pfvm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFVM_DEBUG", "1")
    result = pfvm("run", "none.onnx")
    assert result.code == 2
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1].startswith("error: ")


def test_a_fault_of_pfvm_is_not_an_error_of_the_user(pfvm: Pfvm, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pfvm.tools import listing

    monkeypatch.setattr(listing, "print_passes", lambda as_json: 1 / 0)
    result = pfvm("passes")
    assert result.code == 70
    assert "ZeroDivisionError" in result.err
    assert "fault of pfvm itself" in result.err


def test_interruption_is_130(pfvm: Pfvm, monkeypatch: pytest.MonkeyPatch) -> None:
    from pfvm.tools import listing

    def interrupt(as_json: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(listing, "print_passes", interrupt)
    assert pfvm("passes").code == 130
