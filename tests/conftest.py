"""What all tests share."""

import os
import pathlib
import random
import sys

import pytest

# Tests compile what they test, and leave the user's cache alone; those of the cache name a folder of their own.
os.environ["PFVM_CACHE"] = "off"

pytest.register_assert_rewrite("support", "pass_settings", "xla_cases", "control_flow", "cli_support", "capture_cases")


@pytest.fixture(autouse=True)
def same_random_numbers():
    """A test's random numbers do not hang on which tests ran before it in the same process."""
    random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(scope="module")
def quick_compilation():
    """For hundreds of tiny XLA programs: its optimizations would take most of the time and are not what is tested."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def model(tmp_path):
    """The path of a small model, for the tests of the command."""
    import onnx
    from cli_support import TEXT

    path = pathlib.Path(tmp_path, "model.onnx")
    onnx.save(onnx.parser.parse_model(TEXT), path)
    return path


@pytest.fixture
def pfvm(capsys):
    """The command: its arguments → `cli_support.Result`."""
    from cli_support import Result
    from pfvm.tools import cli

    def run(*arguments):
        code = cli.run_command([str(a) for a in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run
