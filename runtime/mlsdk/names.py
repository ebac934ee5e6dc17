"""Every public name of the MLSDK and what it means here: the one table behind warnings, errors and the listing.

The names are from that SDK's public examples and documents.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Literal, NamedTuple

from pfvm.errors import NotBuiltError

Kind = Literal["call", "keyword", "option", "flag", "preset", "input", "variable", "file"]
Status = Literal["same", "differs", "warning", "error"]


class MLSDKWarning(UserWarning):
    """A call, option, flag or variable of the MLSDK that has no meaning on this device. Names it."""


class Name(NamedTuple):
    """One name. status: "same", "differs" (`note` says how), "warning" (no meaning here), "error" (refused)."""

    name: str
    kind: Kind
    status: Status
    note: str


def _rows(kind: Kind, status: Status, note: str, *names: str) -> Iterator[Name]:
    return (Name(name, kind, status, note) for name in names)


_OWN_FILES = (os.path.dirname(os.path.abspath(__file__)) + os.sep, contextlib.__file__)
_BOARD = "steers the compiler of the board"
_VARIABLES = (
    *("CODEGEN_SA_STEPS", "CODEGEN_NUM_SA_THREADS", "CODEGEN_N_TRANSPOSE_THREADS"),
    *("CODEGEN_N_DEV_COPY_STREAMS_THREADS", "CODEGEN_ENABLE_SET_PARTIAL_LOCATION", "CODEGEN_GEMM_FORCE_CHANNEL_SPLIT"),
    *("CODEGEN_GEMM_FORCE_WEIGHT_ON_DRAM", "CODEGEN_OP_DEF", "CODEGEN_OPS_ON_HOST", "CODEGEN_DEFER_SIMPLIFY"),
    *("CODEGEN_SKIP_OPTIMIZER_FUSION", "CODEGEN_TIME_SLICE_SCATTERED_INDEXING_BCAST", "CODEGEN_MAX_TIME_SLICE"),
    *("CODEGEN_CONV_AGGRESSIVE_TIME_SLICING", "CODEGEN_GN_AGGRESSIVE_TIME_SLICING", "CODEGEN_LAYOUT_PLANNER_Z"),
    *("CODEGEN_LAYOUT_PLANNER_Z_HONOR_LAYOUT_SPEC", "CODEGEN_LPZ_SKIP_PROPAGATE_TIME", "CODEGEN_USE_ADDR_FIRST_Z"),
    *("CODEGEN_IGNORE_LAYOUT_CHECK", "CODEGEN_ALLOW_UNUSED_LAYOUT_SPEC", "CODEGEN_IGNORE_REUSED_VALUE_LAYOUT"),
    *("CODEGEN_SKIP_RESOLVE_NEGATIVE_INDICES", "CODEGEN_NODE_SIM_ALLOW_UNEXPECTED_FAIL"),
    *("CODEGEN_FORCE_ATTENTION_GRAD_AFTER_FORWARD", "CODEGEN_AUTO_RECOMPUTE_HACK_FOR_QWEN"),
    *("CODEGEN_STOP_USING_GENERIC_INDEXING_GATHER_INDEX_ADD", "CODEGEN_ALARM", "CODEGEN_SCHEDULE_PP_BEAM_WIDTH"),
    *("CODEGEN_FIND_BEST_COMPILE_OPTIONS", "CODEGEN_FIND_BETTER_COMPILE_OPTIONS", "PFVM_DISABLE_CONSTANT_REUSE"),
)

TABLE: tuple[Name, ...] = (
    Name("MNDevice", "call", "differs", "takes pfvm's device strings; mncore2:* and emu2 are emulated"),
    Name("Context", "call", "same",
         "contexts on one device share the state there; mesh=, shard=, coordinator=, … are of pfvm alone"),
    Name("Context.switch_context", "call", "same", "notes the current context; nothing depends on it"),
    *_rows("call", "same", "possible, not needed: the trace finds state; two tensors of one name are an error",
           "Context.register_param", "Context.register_buffer", "Context.register_optimizer_buffers",
           "Context.registry", "Context.registry.register"),
    *_rows("call", "same", "names join path and prefix by @",
           "set_tensor_name", "get_tensor_name", "set_tensor_name_in_module", "set_buffer_name_in_optimizer"),
    Name("Context.compile", "call", "same", "writes model.onnx, pfvm.onnx, passes.json and signature.json"),
    Name("Context.compile_automap", "call", "same", "any function of nested tensors"),
    *_rows("call", "same", "the nesting may hold such objects",
           "register_pytree_namedtuple", "register_pytree_dataclass"),
    Name("Context.load_codegen_dir", "call", "differs",
         "state takes its values from registered tensors of the same names, else from the file"),
    Name("Context.get_registered_value_proxy", "call", "same", "a view of the tensor's memory"),
    Name("Context.synchronize", "call", "differs", "brings all state to the host at once; a look at a tensor does too"),
    Name("Context.invalidate", "call", "differs", "frees the device; state is brought to the host first, not lost"),
    Name("CompiledFunction", "call", "same", "results are TensorProxy in the function's own nesting"),
    Name("CompiledFunction.__call__", "call", "same", "takes tensors and proxies; other keys of the dict are not read"),
    Name("CompiledFunction.allocate_input_proxy", "call", "same", "zeros; not for compile_automap"),
    *_rows("call", "same", "name → IOSpec", "CompiledFunction.input_specs", "CompiledFunction.output_specs"),
    Name("mncore.runtime_core._context._function.CompiledFunction", "call", "differs", "import CompiledFunction"),
    Name("IOSpec", "call", "differs", "dtype and shape; every layout is dense and row-major"),
    Name("IOSpec.is_memcopyable_to", "call", "same", "same dtype and shape"),
    Name("TensorProxy", "call", "differs", "a torch.Tensor on the host; results of torch functions are plain tensors"),
    Name("TensorLike", "call", "same", "torch.Tensor or TensorProxy"),
    *_rows("call", "same", "copies", "TensorProxy.cpu", "TensorProxy.item", "TensorProxy.load_from"),
    Name("TensorProxy.__getitem__", "call", "same", "a proxy of the part"),
    Name("CacheOptions", "call", "warning", "xla devices keep programs on disk anyway: see PFVM_CACHE"),
    *_rows("keyword", "warning", "a switch of CacheOptions",
           "enable_app_cache", "enable_onnx_cache", "enable_codegen_cache", "enable_gpfn2obj_cache"),
    *_rows("call", "same", "a pathlib.Path", "storage.path", "mlsdk.path"),
    *_rows("call", "same", "Perfetto's format; Chrome's JSON where the file is named .json",
           "trace_scope", "trace_event"),
    *_rows("call", "same", "torch.optim's mathematics; torch's own optimizers do as well",
           "MNCoreOptimizer", "MNCoreSGD", "MNCoreAdam", "MNCoreAdamW", "MNCoreLRScheduler"),
    *_rows("keyword", "same", "of MNCoreSGD, MNCoreAdam, MNCoreAdamW",
           "params", "lr", "momentum", "dampening", "weight_decay", "betas", "eps"),
    Name("chainer_use_torch", "keyword", "warning", "of MNCoreAdam: the mathematics is always torch's"),
    *_rows("keyword", "error", "a TypeError: today's are lr, betas, weight_decay, eps",
           "learning_rate", "alpha", "beta", "norm_coefficient", "epsilon"),
    *_rows("call", "same", "pfvm.lint's findings; `fx2onnx.linter` is `pfvm.runtime.mlsdk.linter`",
           "fx2onnx.linter.lint", "LintLevel", "LintResult"),
    *_rows("call", "error", "helpers for the models of transformers, not built",
           "mlsdk.experimental.llm",
           "attention_mask.prepare_4d_causal_attention_mask_with_cache_position",
           "kv_cache.kv_cache_to_legacy", "kv_cache.kv_cache_to_plamo", "kv_cache.kv_cache_to_tensor",
           "modeling_staged_llama.split_llama"),
    # Keywords of compile and compile_automap.
    *_rows("keyword", "same", "of compile", "function", "inputs", "codegen_dir", "options"),
    Name("cache_options", "keyword", "warning", "xla devices keep programs on disk anyway: see PFVM_CACHE"),
    Name("num_compiler_threads", "keyword", "warning", "the passes run on one thread, ONNX Runtime and XLA on all"),
    Name("quiet", "keyword", "same", "pfvm prints nothing; True silences these warnings too"),
    Name("export_kwargs", "keyword", "warning", "there is one exporter; {'use_fx2onnx': True} describes it"),
    Name("use_fx2onnx", "keyword", "same", "of export_kwargs; False is a warning"),
    Name("optimizers", "keyword", "same", "with options={'backprop': True}; else a warning, the function holds them"),
    Name("training", "keyword", "differs", "False captures the function under torch.no_grad()"),
    Name("io_spec_constraints", "keyword", "same", "checked: another dtype or shape is an error"),
    # Keys of options, which also takes the fields of pfvm.Options.
    Name("option_json", "option", "same", "flags of pfvm, or of the table below"),
    Name("float_dtype", "option", "differs", "'float' is what is computed; 'mixed' is a warning: use torch.autocast"),
    Name("envs", "option", "warning", "the variables below"),
    Name("backprop", "option", "same", "backward and the optimizers' steps are added to the function's loss"),
    *_rows("option", "warning", _BOARD,
           "layout_spec", "gemm_layout_spec", "layout_planner", "simulation_mode", "sram_budget",
           "sa_expected_run_iters", "num_threads", "scheduler"),
    Name("out_onnx", "option", "same", "where to write the compiled model as well"),
    Name("--out_onnx", "flag", "same", "where to write the compiled model as well"),
    Name("--scheduler", "flag", "warning", _BOARD),
    Name("<codegen_dir>", "flag", "same", "inside a flag: the folder given to compile"),
    # option_json files of that SDK; where the file is not there, its name still chooses pfvm's level.
    Name("O0", "preset", "differs", "--opt-level=0"),
    Name("O1", "preset", "differs", "--opt-level=1"),
    Name("O2", "preset", "differs", "--opt-level=2"),
    Name("O3", "preset", "differs", "--opt-level=3"),
    Name("O4", "preset", "differs", "--opt-level=3"),
    Name("debug", "preset", "differs", "--opt-level=2"),
    # Inputs that the legacy exporter adds, <opt>@<group>@…
    Name("mncore_learning_rate", "input", "same", "with backprop: the group's learning rate from this call on"),
    Name("mncore_global_step", "input", "warning", "with backprop: the optimizer counts its own steps"),
    Name("mncore_grad_scale_factor", "input", "error", "with backprop: only 1 is accepted"),
    *_rows("variable", "warning", _BOARD, *_VARIABLES),
    Name("MNCORE_USE_EXTERNAL_DATA_FORMAT", "variable", "same", "--external-data"),
    Name("MNCORE_USE_LEGACY_ONNX_EXPORTER", "variable", "warning", "there is one exporter; options={'backprop': True}"),
    # Files of codegen_dir.
    *_rows("file", "same", "standard ONNX", "model.onnx", "pfvm.onnx"),
    *_rows("file", "error", "not written yet: the plan for the board",
           "l3ir.txt", "l3ir_stripped.onnx.zst", "report.json", "layout.*", "simulation_result.json"),
    *_rows("file", "error", "never written: code for the board, and logs of its compiler",
           "model.app", "model.vsm", "out.txt", "out.json"),
    Name("trace.json", "file", "differs", "trace_scope(FILE) writes a trace where it is told to"),
)  # fmt: skip

BY_NAME = {(row.kind, row.name): row for row in TABLE}


def warn(kind: Kind, name: str, detail: str = "") -> None:
    """A warning, at the caller's line, that names what has no meaning here and says why."""
    row = BY_NAME[kind, name]
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_FILES):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"{kind} {name!r} has no meaning on pfvm: {detail or row.note}", MLSDKWarning, stacklevel=level)


def refuse(kind: Kind, name: str) -> NotBuiltError:
    """The error for a name of status "error"."""
    return NotBuiltError(f"{kind} {name!r} of the MLSDK: {BY_NAME[kind, name].note}")
