"""What is published works: sdist and wheel build, and the wheel alone imports and compiles."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[1]
EVERY_MODULE = """
import importlib, pkgutil, pfvm
names = [m.name for m in pkgutil.walk_packages(pfvm.__path__, "pfvm.") if m.name != "pfvm.__main__"]
for name in names:
    importlib.import_module(name)
print(len(names), pfvm.__file__)
"""


def _run(*command: str | pathlib.Path, cwd: pathlib.Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_installs_imports_and_compiles(tmp_path: pathlib.Path) -> None:
    # The sources without what a build leaves behind, so that parallel tests do not meet.
    source = tmp_path / "source"
    listed = _run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    for name in listed:
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", source, cwd=tmp_path)
    (wheel,), (sdist,) = (tmp_path / "dist").glob("*.whl"), (tmp_path / "dist").glob("*.tar.gz")

    modules = {n for n in listed if n.endswith(".py") and not n.startswith(("tests/", "examples/", "docs/"))}
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert {f"pfvm/{name}" for name in modules} <= packed and "pfvm/py.typed" in packed
    assert {f"pfvm/{name}" for name in listed if name.startswith("tools/view/static/")} <= packed
    assert not any(name.startswith(("pfvm/tests", "tests", "examples")) for name in packed)
    with tarfile.open(sdist) as archive:
        assert {"pyproject.toml", "LICENSE", "README.md"} <= {n.partition("/")[2] for n in archive.getnames()}

    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    _run(python, "-m", "pip", "install", "--no-index", "--no-deps", "-q", wheel, cwd=tmp_path)
    # Dependencies come from here, without a network; a .pth line adds the folder but not our editable install.
    library = pathlib.Path(sysconfig.get_path("purelib"))
    inside = next((environment / "lib").glob("python*/site-packages"))
    (inside / "dependencies.pth").write_text(f"{library}\n")

    count, where = _run(python, "-c", EVERY_MODULE, cwd=tmp_path).split()
    assert int(count) >= len(modules) - 10 and where.startswith(str(environment))
    (tmp_path / "model.onnxtxt").write_text(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { a = Identity(x) y = Relu(a) }'
    )
    _run(environment / "bin" / "pfvm", "compile", "model.onnxtxt", "-o", "pfvm.onnx", cwd=tmp_path)
    assert (tmp_path / "pfvm.onnx").stat().st_size > 0


@pytest.mark.parametrize(
    ("blocked", "code", "message"),
    [
        ("jax", "pfvm.load(model, device='xla:cpu')", "pip install 'pfvm[xla]'"),
        ("torch", "pfvm.compile(lambda d: d, {})", "pip install 'pfvm[torch]'"),
        ("torch", "pfvm.export(lambda d: d, {})", "pip install 'pfvm[torch]'"),
    ],
)
def test_a_missing_extra_is_one_line_with_the_command(blocked: str, code: str, message: str) -> None:
    program = f"""
import sys; sys.modules[{blocked!r}] = None
import onnx, pfvm
header = '<ir_version: 8, opset_import: ["" : 17]>'
model = onnx.parser.parse_model(header + 'g (float[2] x) => (float[2] y) {{ y = Relu(x) }}')
assert len(pfvm.optimize(model).graph.node) == 1
try: {code}
except pfvm.PfvmError as error: print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert message in done.stdout and len(done.stdout.splitlines()) == 1, done.stderr
