"""One schema: keyword arguments, flags and option files mean the same."""

from __future__ import annotations

import json
import pathlib

import pytest
from pfvm.compiler.options import Options, from_args, parse
from pfvm.errors import NotBuiltError, OptionError
from pfvm.passes import pipeline


def test_keywords_arguments_and_files_are_one(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "options.json"
    file.write_text(
        json.dumps({"args": ["-O1", "--disable=eliminate-identity", "--verify", "--out_onnx=<codegen_dir>/p.onnx"]})
    )
    expected = Options(opt_level=1, disable=("eliminate-identity",), verify=True, output=tmp_path / "p.onnx")
    assert parse(file, placeholders={"codegen_dir": str(tmp_path)}) == expected
    assert (
        parse({"opt_level": 1, "disable": "eliminate-identity", "verify": True, "output": tmp_path / "p.onnx"})
        == expected
    )
    assert parse(expected) == expected
    assert parse(expected, opt_level=0).opt_level == 0


def test_repeated_flags_collect() -> None:
    args = from_args(["--pass=fold-constants{slack=1KiB}", "--pass=infer-shapes", "--opt-level=0"])
    assert args == {"pass": ("fold-constants{slack=1KiB}", "infer-shapes"), "opt_level": 0}
    assert parse({"args": ["--pass=fold-constants{slack=1KiB}"]}).passes == ("fold-constants{slack=1KiB}",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"opt_levle": 1}, "there is no option --opt-levle; did you mean '--opt-level'"),
        ({"opt_level": 7}, "--opt-level"),
        ({"opset": 99}, "--opset"),
        ({"passes": ("fold",)}, r"^-p: there is no pass 'fold'; did you mean 'fold-constants'\?; passes: infer-shapes"),
        ({"passes": ("fold-constans",)}, "did you mean 'fold-constants'"),
        ({"passes": ("fold-constants{slck=1}",)}, "has no option 'slck'; did you mean 'slack'"),
        ({"passes": ("fold-constants{size=1}",)}, "has no option 'size'"),
        ({"passes": ("fold-constants{slack=lots}",)}, "is of type int"),
        ({"disable": ("nothing",)}, "^--disable: there is no pass 'nothing'"),
        ({"opset": 99}, r"^--opset: ai.onnx has opsets 1 to \d+, not 99$"),
        ({1: 2}, "1"),
        ({"args": ["opt-level=1"]}, "is not of the form --flag=value"),
        ({"args": 3}, '"args" must be a list'),
        ({"args": "--verify"}, '"args" must be a list'),
        ({"fused_ops": "maybe"}, "--fused-ops"),
    ],
)
def test_a_bad_option_is_named(options: dict, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse(options)


def test_names_of_passes_may_have_underscores() -> None:
    given = parse(opt_level=0, passes=["fold_constants{slack=2}"], disable="eliminate_identity")
    assert [each.name for each in pipeline.select(0, given.passes, given.disable)] == ["fold-constants"]
    assert given.disable == ("eliminate-identity",)


def test_options_that_are_none_of_the_forms() -> None:
    with pytest.raises(OptionError, match=r"a mapping, an option file or pfvm\.Options, not 3"):
        parse(3)  # type: ignore[arg-type]


def test_options_of_later_versions_are_known_and_refused() -> None:
    with pytest.raises(NotBuiltError, match=r"--scheduler \(scheduler= in Python\) is not built yet"):
        parse({"scheduler": "x"})


def test_meshes_and_what_they_split() -> None:
    given = parse(
        {"args": ["--device=xla:cpu", "--mesh=data=4,model=2", "--shard=*.weight=model,None", "--shard=auto"]}
    )
    assert (given.mesh, given.shard) == ("data=4,model=2", ("*.weight=model,None", "auto"))
    assert parse({"device": "xla:cpu", "mesh": "a=2,b=2", "shard": "w=a,b"}).mesh == "a=2,b=2"
    for wrong, message in (
        ({"mesh": "data=2"}, "--mesh is for a device: give --device as well"),
        ({"device": "xla:cpu", "shard": "auto"}, "give --mesh as well"),
        ({"device": "xla:cpu", "mesh": "data=0"}, "'data=0' is no axis and its size"),
        ({"device": "xla:cpu", "mesh": "data=2,data=2"}, "'data' is given twice"),
        ({"device": "xla:cpu", "mesh": "data=2", "shard": "w=modle"}, "has no axis 'modle'"),
        ({"device": "xla:cpu", "mesh": "dta=2"}, "nothing is split over the axis 'dta'; did you mean 'data'"),
        ({"device": "xla:cpu", "mesh": "data=2,b=2", "shard": "w=data"}, "nothing is split over the axis 'b'; batches"),
        ({"device": "xla:cpu", "mesh": "a=2,b=2", "shard": "w=a,a"}, "the axis 'a' is given twice"),
        ({"device": "xla:cpu", "mesh": "data=2", "shard": "w"}, "is not of the form NAME=AXES"),
    ):
        with pytest.raises(OptionError, match=message):
            parse(wrong)


def test_targets() -> None:
    assert {"ort-norms", "fuse-gelu"} <= {
        each.name for each in pipeline.select(2, target=parse({"target": "ort"}).target)
    }
    assert not any(each.name.startswith("ort-") for each in [*pipeline.select(2), *pipeline.select(1, target="ort")])
    with pytest.raises(OptionError, match="--target"):
        parse({"target": "tensorrt"})


def test_devices_to_compile_for() -> None:
    assert parse({"device": "xla:cpu", "explain": True}).explain
    assert parse({"args": ["--device=pfvm:cpu"]}).device == "pfvm:cpu"
    with pytest.raises(OptionError, match="give --device as well"):
        parse({"explain": True})


def test_messages_in_the_words_of_the_caller() -> None:
    for wrong, flags, names in (
        ({"verfy": True}, "no option --verfy; did you mean '--verify'?", "no option verfy; did you mean 'verify'?"),
        ({"device": "xla:cpu", "shard": "auto"}, "--shard says what is split", "shard says what is split"),
        ({"opt_level": 7}, "--opt-level: Input", "opt_level: Input"),
        (
            {"effort": "fast"},
            "--effort is for a device: give --device as well",
            "pfvm.compile takes it as device_options={'effort': 'fast'}",
        ),
        ({"mesh": "data=2"}, "--mesh is for a device: give --device", "pfvm.compile takes it as mesh='data=2'"),
    ):
        with pytest.raises(OptionError) as from_command_line:
            parse(wrong)
        with pytest.raises(OptionError) as from_python:
            parse(wrong, from_python=True)
        assert flags in str(from_command_line.value)
        assert names in str(from_python.value) and "--" not in str(from_python.value)


def test_option_files_that_are_none(tmp_path: pathlib.Path) -> None:
    with pytest.raises(OptionError, match="No such file"):
        parse(tmp_path / "missing.json")
    (tmp_path / "text.json").write_text("O2")
    with pytest.raises(OptionError, match="is not JSON"):
        parse(tmp_path / "text.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(OptionError, match="must hold an object"):
        parse(tmp_path / "list.json")
