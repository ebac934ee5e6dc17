"""Normal form → ONNX file, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping

import onnx
import onnx_ir as ir
from pfvm.errors import PfvmError
from pfvm.passes import schema, tensor_bytes
from pfvm.passes.effects import bodies, graphs_in, nodes_in, roots

from . import external, weights, wire
from .importer import DECLARED_SHAPE
from .signature import Interface

PROTOBUF_LIMIT = 2**31 - 1
"""A protobuf message holds less than 2 GiB; bigger models keep their weights in a file beside."""


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The model as a ModelProto with the interface that was imported. External tensors stay references."""
    return _to_proto(model.clone(), Interface.of(model))


def _to_proto(copy: ir.Model, interface: Interface) -> onnx.ModelProto:
    """Of a model that nobody needs any more."""
    export_shapes(copy, interface, in_file=True)
    proto = ir.serde.serialize_model(copy)
    declared = {v.name for v in proto.graph.input}
    if copy.ir_version < 4:  # there, every initializer is an input as well
        appended = [v for v in copy.graph.initializers.values() if v.name not in declared]
    else:
        appended = []
    for graph in external.graphs(proto.graph):
        _tidy(graph)
    for function in proto.functions:
        _untype_formals(function)
    interface.restore(proto)
    proto.graph.input.extend(ir.serde.serialize_value(value) for value in appended)
    return proto


def _tidy(graph: onnx.GraphProto) -> None:
    """Say once what onnx_ir says twice: the metadata of an initializer, and its type, which the tensor has."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for tensor in tensors.values():
        props = {prop.key: prop.value for prop in tensor.metadata_props}
        del tensor.metadata_props[:]
        for key, value in props.items():
            tensor.metadata_props.add(key=key, value=value)
    kept = [v for v in graph.value_info if v.name not in tensors or v.doc_string or v.metadata_props]
    if len(kept) < len(graph.value_info):
        del graph.value_info[:]
        graph.value_info.extend(kept)


def _untype_formals(function: onnx.FunctionProto) -> None:
    """Each call gives its own types; what a pass has learnt of one is not read again, and would not come out again."""
    kept = [value for value in function.value_info if value.name not in function.input]
    if len(kept) < len(function.value_info):
        del function.value_info[:]
        function.value_info.extend(kept)


def export_shapes(model: ir.Model, interface: Interface, in_file: bool = False) -> None:
    """Shapes of intermediate values: as inferred, with the file's own symbols only; else as the file declared.

    `in_file`: only values that the source gives symbols have any. ONNX Runtime makes one node of a sum whose dims are
    all named and the layer normalization behind it, which is slower on a CPU.
    """
    symbols = interface.symbols()
    for root in roots(model):
        for graph in graphs_in(root):
            for value in graph.inputs if graph is not root else ():
                value.shape = value.meta.get(DECLARED_SHAPE)
            for node in graph:
                for out in node.outputs:
                    out.shape = _exported(out, symbols, in_file)
        for node in nodes_in(root):
            if node.domain not in schema.STANDARD_DOMAINS:  # which may read what its bodies declare, as BeamSearch does
                for out in (out for body in bodies(node) for out in body.outputs):
                    out.shape = out.meta.get(DECLARED_SHAPE, out.shape)


def _exported(value: ir.Value, symbols: frozenset[str], in_file: bool) -> ir.Shape | None:
    declared = value.meta.get(DECLARED_SHAPE)
    if value.type is None:
        return None  # a file has no place for the shape of what has no type
    if value.shape is None:
        return declared
    if in_file and all(isinstance(d, int) or d.value is None for d in declared or ()):
        symbols = frozenset()
    return ir.Shape([d if isinstance(d, int) or d.value in symbols else ir.SymbolicDim(None) for d in value.shape])


def weight_bytes(model: ir.Model) -> int:
    """Bytes of all initializers, bodies included."""
    graphs = list(graphs_in(model.graph))
    return sum(v.const_value.nbytes for g in graphs for v in g.initializers.values() if v.const_value is not None)


def data_path(path: pathlib.Path, safetensors: bool = False) -> pathlib.Path:
    """Where the weights of a model at `path` go when they are written beside it."""
    return path.parent / f"{path.name}.{'safetensors' if safetensors else 'data'}"  # of "." too, which is refused later


def reads_from(model: ir.Model, path: pathlib.Path) -> bool:
    """Whether an initializer's bytes are still in that file."""
    return any(True for _ in _tensors_in(model, path))


def load_from(model: ir.Model, path: pathlib.Path) -> None:
    """Read the initializers that are in that file into memory."""
    for value, tensor in _tensors_in(model, path):
        value.const_value = ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)


def _tensors_in(model: ir.Model, path: pathlib.Path) -> Iterator[tuple[ir.Value, ir.ExternalTensor]]:
    where = path.resolve()
    for graph in graphs_in(model.graph):
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) and pathlib.Path(tensor.path).resolve() == where:
                yield value, tensor


def write_model(
    model: ir.Model, path: str | os.PathLike, external_data: bool = False, safetensors: bool = False
) -> None:
    """Write a model; an existing file is replaced only once the new one is complete.

    With `external_data`, or when the weights exceed protobuf's 2 GiB, they go to `<name>.data` beside the file; with
    `safetensors`, to `<name>.safetensors`.
    Raises PfvmError when the file cannot be written; nothing is left behind then.
    """
    target = pathlib.Path(path)
    beside = external_data or safetensors or weight_bytes(model) > PROTOBUF_LIMIT - 2**24
    with staged(target) as folder:
        source = model.clone()
        if beside:
            weights.unload(source, folder / data_path(target, safetensors).name, safetensors)
        else:
            ir.external_data.load_to_model(source)
        held = _take_weights(source)
        with open(folder / target.name, "wb") as file:
            wire.write(file, _to_proto(source, Interface.of(model)), held)


def _take_weights(model: ir.Model) -> dict[str, memoryview]:
    """Leave large initializers of the main graph without their bytes, which are returned."""
    taken: dict[str, memoryview] = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if isinstance(tensor, ir.Tensor) and tensor.nbytes >= wire.LEAST:
            taken[name] = tensor_bytes.buffer(tensor)
            value.const_value = _Hollow(
                tensor.numpy(),
                tensor.dtype,
                shape=tensor.shape,
                name=name,
                doc_string=tensor.doc_string,
                metadata_props=dict(tensor.metadata_props),
            )
    return taken


class _Hollow(ir.Tensor):
    """A tensor whose bytes are written by somebody else."""

    def tobytes(self) -> bytes:
        return b""


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write a text file, whole or not at all."""
    target = pathlib.Path(path)
    with staged(target) as folder:
        (folder / target.name).write_text(text, encoding="utf-8")


def write_files(directory: pathlib.Path, files: Mapping[str, bytes]) -> None:
    """Write files into a directory, which is made, in this order; each replaces an old one once it is complete.

    A name may have a folder: "v5e-1x1/report.json".
    """
    make_directory(directory)
    for name, content in files.items():
        path = directory / name
        make_directory(path.parent)
        with staged(path) as folder:
            (folder / path.name).write_bytes(content)


def make_directory(directory: pathlib.Path) -> None:
    """Make the artifacts directory where it is not there yet. Raises PfvmError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PfvmError(f"cannot make the artifacts directory {directory}: {error.strerror}") from error


def _is_special(target: pathlib.Path) -> bool:
    """A device or a pipe, also where a link in /dev stands for what is open: /dev/stdout."""
    if target.is_symlink() and target.absolute().parts[1:2] == ("dev",):
        return True
    return target.exists() and not target.is_file() and not target.is_dir()


@contextlib.contextmanager
def staged(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary folder beside `target`; what the body writes there is moved into place when it ends well.

    The file called like the target moves last: who finds it finds all of it. A device or a pipe (/dev/null) is written
    to, and never replaced. Raises PfvmError for operating system errors (no such folder, no space, no permission).
    """
    special = _is_special(target)
    try:
        beside = None if special else target.parent
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=beside))
    except OSError as error:
        raise PfvmError(f"cannot write {target}: {error.strerror}") from error
    try:
        yield folder
        for file in sorted(folder.iterdir(), key=lambda f: f.name == target.name):
            if not special:
                os.replace(file, target.parent / file.name)
            elif file.name == target.name:
                target.write_bytes(file.read_bytes())
            else:
                raise PfvmError(
                    f"cannot write {target}: {file.name} must lie beside it, and that is no folder of files"
                )
    except OSError as error:
        raise PfvmError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
