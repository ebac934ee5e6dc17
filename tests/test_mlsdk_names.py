"""Promises of the MLSDK's names: every one is in the table, and what has no meaning here says so by name."""

from __future__ import annotations

import importlib
import json
import pathlib
import re
import subprocess
import sys
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
from pfvm.errors import NotBuiltError, OptionError  # noqa: E402
from pfvm.runtime import mlsdk  # noqa: E402
from pfvm.runtime.mlsdk import Context, MNDevice, names  # noqa: E402

FACTS = pathlib.Path(__file__).parents[2] / "shared" / "facts" / "mncore2.md"
SAMPLE = {"x": torch.ones(2)}


def compiled(folder: pathlib.Path, **keywords: Any) -> Any:
    return Context(MNDevice("pfvm:cpu")).compile(lambda inp: {"y": inp["x"].t().t() + 1}, SAMPLE, folder, **keywords)


def facts_section(first: str, last: str) -> str:
    if not FACTS.exists():
        pytest.skip("the list of the MLSDK's names is not part of this repository")
    text = FACTS.read_text()
    return text[text.index(first) : text.index(last)]


def words(text: str) -> set[str]:
    """Names in back quotes, of files, options, calls and variables."""
    quoted = " ".join(re.findall(r"`([^`]*)`", text))
    return set(re.findall(r"[A-Za-z_][A-Za-z_0-9]{2,}", quoted))


def test_every_name_of_the_sdk_is_in_the_table() -> None:
    table = set(re.findall(r"[A-Za-z_][A-Za-z_0-9]{2,}", " ".join(r.name for r in names.TABLE)))
    calls = facts_section("### 1.2", "### 1.3")
    # Values and types of arguments, and names that users choose.
    not_names = {
        *("args", "args_tuple", "kwargs_dict", "ctx", "dir", "idx", "module_or_optimizer", "tensor_or_proxy", "clone"),
        *("filename_or_None", "auto", "cuda", "cpu", "pfvm", "emu2", "mncore2", "spill_opt", "str", "dict", "True"),
        *("False", "float", "mixed", "tensor", "name", "other", "prefix", "path", "opt", "group"),
    }
    missing = words(calls) - table - not_names
    assert not missing, sorted(missing)
    files = facts_section("### 1.5", "### 1.6").partition("Viewer")[0]
    for name in re.findall(r"`([^`]*\.[^`]*)`", files):
        assert ("file", name) in names.BY_NAME, name


def test_every_variable_is_in_the_table() -> None:
    text = facts_section("### 1.4", "### 1.5")
    text = text.replace("CODEGEN_{CONV,GN}_AGGRESSIVE", "CODEGEN_CONV_AGGRESSIVE CODEGEN_GN_AGGRESSIVE").replace(
        "`Gather=GatherBcast`", ""
    )
    found = set(re.findall(r"\b(?:MNCORE|PFVM|CODEGEN)_[A-Z_]+\b", text + facts_section("### 1.3", "### 1.4")))
    found |= {"CODEGEN_GN_AGGRESSIVE_TIME_SLICING"}
    known = {row.name for row in names.TABLE if row.kind == "variable"}
    assert found - known - {"CODEGEN_GN_AGGRESSIVE", "CODEGEN_CONV_AGGRESSIVE"} == set()


def test_the_table_has_each_name_once_and_each_public_name() -> None:
    assert len(names.BY_NAME) == len(names.TABLE)
    calls = {part for row in names.TABLE for part in row.name.split(".")}
    assert set(mlsdk.__all__) - {"MLSDKWarning", "lint", "path"} <= calls
    for row in names.TABLE:
        if row.kind == "call" and row.status in ("same", "differs") and "." in row.name:
            owner, _, member = row.name.rpartition(".")
            if hasattr(mlsdk, owner):
                found = getattr(mlsdk, owner)
                assert hasattr(found, member) or member in ("registry", "input_specs", "output_specs"), row.name


def test_the_listing_prints_every_name() -> None:
    done = subprocess.run([sys.executable, "-m", "pfvm.runtime.mlsdk"], capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == [row.name for row in names.TABLE]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"options": {"scheduler": "auto_recompute_sa"}}, "option 'scheduler'"),
        ({"options": {"layout_spec": "layout.json"}}, "option 'layout_spec'"),
        ({"options": {"float_dtype": "mixed"}}, "option 'float_dtype'.*torch.autocast"),
        ({"options": {"envs": {"CODEGEN_SA_STEPS": "100"}}}, "variable 'CODEGEN_SA_STEPS'"),
        ({"options": {"option_json": "/opt/pfn/presets/O1.json"}}, "preset 'O1'.*--opt-level=1"),
        ({"cache_options": mlsdk.CacheOptions("cache", enable_app_cache=True)}, "keyword 'cache_options'.*PFVM_CACHE"),
        ({"num_compiler_threads": 4}, "keyword 'num_compiler_threads'"),
        ({"export_kwargs": {"use_fx2onnx": False}}, "keyword 'export_kwargs'"),
        ({"optimizers": [torch.optim.SGD([torch.ones(1)])]}, "keyword 'optimizers'"),
    ],
)
def test_what_has_no_meaning_is_a_warning_by_name(keywords: Any, message: str, tmp_path: pathlib.Path) -> None:
    with pytest.warns(mlsdk.MLSDKWarning, match=message) as caught:
        function = compiled(tmp_path, **keywords)
    assert [w.filename for w in caught if w.category is mlsdk.MLSDKWarning] == [__file__]
    assert torch.equal(function(SAMPLE)["y"].cpu(), torch.full((2,), 2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error", mlsdk.MLSDKWarning)
        compiled(tmp_path, quiet=True, **keywords)


def test_variables_of_the_process_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("CODEGEN_OP_DEF", "Gather=GatherBcast")
    with pytest.warns(mlsdk.MLSDKWarning, match="variable 'CODEGEN_OP_DEF'"):
        compiled(tmp_path)
    monkeypatch.delenv("CODEGEN_OP_DEF")
    compiled(tmp_path, options={"envs": {"MNCORE_USE_EXTERNAL_DATA_FORMAT": "1"}})


def test_flags_of_an_option_file(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"args": ["--out_onnx=<codegen_dir>/copy.onnx", "--scheduler=spill_opt", "-O0"]}))
    with pytest.warns(mlsdk.MLSDKWarning, match="flag '--scheduler'"):
        function = compiled(tmp_path / "out", options={"option_json": str(file)})
    assert (tmp_path / "out" / "copy.onnx").exists()
    assert [n.op_type for n in function.compiled.model.graph][:2] == ["Identity", "Identity"], "-O0 changes nothing"


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"options": {"nonsense": 1}}, "no option nonsense"),
        ({"options": {"float_dtype": "half"}}, "float_dtype is one of float, mixed, not 'half'"),
        ({"options": {"envs": {"CODEGEN_NONSENSE": "1"}}}, "no variable 'CODEGEN_NONSENSE'"),
        ({"options": {"option_json": "nowhere.json"}}, "nowhere.json: No such file"),
        ({"options": {"backprop": True}}, r"needs optimizers=\[…\]"),
    ],
)
def test_what_neither_has_is_an_error(keywords: Any, message: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(OptionError, match=message):
        compiled(tmp_path, **keywords)


@pytest.mark.parametrize("device", ["mncore2:auto", "mncore2:0", "mncore2:7", "emu2"])
def test_boards_are_emulated(device: str) -> None:
    assert MNDevice(device).device.backend == "mncore2"


def test_unknown_devices_and_unbuilt_helpers() -> None:
    with pytest.raises(OptionError, match="known devices"):
        MNDevice("mncore2:9")
    with pytest.raises(OptionError, match="a device is a string"):
        Context(3)  # type: ignore[arg-type]
    assert repr(pfvm.Context("pfvm:cpu")) == "Context(MNDevice('pfvm:cpu'))"
    with pytest.raises(NotBuiltError, match=r"mlsdk.experimental.llm"):
        importlib.import_module("pfvm.runtime.mlsdk.experimental.llm.kv_cache")


def test_older_optimizer_keywords_are_type_errors_and_an_unknown_variant_warns() -> None:
    with pytest.raises(TypeError, match="learning_rate"):
        mlsdk.MNCoreAdam([torch.ones(1)], learning_rate=0.1)
    with pytest.warns(mlsdk.MLSDKWarning, match="keyword 'chainer_use_torch'"):
        mlsdk.MNCoreAdam([torch.ones(1)], chainer_use_torch=False)
    assert isinstance(mlsdk.MNCoreAdamW([torch.ones(1)]), mlsdk.MNCoreOptimizer)
