"""What the corpus checker calls in processes of its own, where the tests' other files cannot be imported."""

import pfvm


def optimize_file(source: str, target: str) -> None:
    pfvm.optimize(source, output=target)
