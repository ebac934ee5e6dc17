"""What all tests share."""

import os

import pytest

# Tests compile what they test, and leave the user's cache alone; those of the cache name a folder of their own.
os.environ["PFVM_CACHE"] = "off"

pytest.register_assert_rewrite("support", "xla_cases")


@pytest.fixture(scope="module")
def quick_compilation():
    """For hundreds of tiny XLA programs: its optimizations would take most of the time and are not what is tested."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
