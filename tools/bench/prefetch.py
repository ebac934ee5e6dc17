"""`python -m pfvm.tools.bench.prefetch`: a training step whose images are decoded and augmented, with and without
prefetch.

Compute is pinned to one core, loading to another: without prefetch they take turns, with it they overlap. The loader
reads PNG files (zlib and PNG's filters, as numpy does them), crops, flips and scales them. Its work for a batch is
chosen so that loading takes about as long as computing, where overlap can help most: 2 times. On a machine that does
something else, times say little: then look at processor time, of which overlap takes no more than the two in turns do,
and at the longer of its two threads, which is how long it would take alone.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

_SIDE, _CROP = 72, 64
_ROUNDS = 15


def png(image: np.ndarray) -> bytes:
    """uint8[h, w, 3] as a PNG file, every row filtered against the one above it ("up")."""
    height, width, _ = image.shape
    rows = image.reshape(height, -1)
    above = np.vstack([np.zeros_like(rows[:1]), rows[:-1]])
    filtered = np.concatenate([np.full((height, 1), 2, np.uint8), rows - above], axis=1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(filtered.tobytes(), 6)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def decoded(data: bytes) -> np.ndarray:
    """What `png` has written: uint8[h, w, 3]."""
    width, height = struct.unpack(">II", data[16:24])
    (size,) = struct.unpack(">I", data[33:37])
    rows = np.frombuffer(zlib.decompress(data[41 : 41 + size]), np.uint8).reshape(height, 1 + 3 * width)
    return np.cumsum(rows[:, 1:], axis=0, dtype=np.uint8).reshape(height, width, 3)


def augmented(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A crop at random, flipped or not, brighter or darker, normalized: float32[3, crop, crop]."""
    top, left = random.integers(0, image.shape[0] - _CROP + 1, 2)
    part = image[top : top + _CROP, left : left + _CROP].astype(np.float32)
    part = part[:, ::-1] if random.random() < 0.5 else part
    part = part * random.uniform(0.8, 1.2, (1, 1, 3)).astype(np.float32)
    part = (part - part.mean((0, 1))) / (part.std((0, 1)) + 1)
    return np.ascontiguousarray(part.transpose(2, 0, 1))


class Loader:
    """Batches of decoded and augmented images. `views`: how many augmentations of each are averaged, its cost."""

    def __init__(self, files: list[bytes], batch: int, count: int, core: int | None) -> None:
        self.files, self.batch, self.count, self.core = files, batch, count, core
        self.views = 1
        self.cpu = 0.0  # seconds of processor time of the last pass

    def __iter__(self) -> Iterator[dict[str, Any]]:
        torch = importlib.import_module("torch")
        if self.core is not None:
            os.sched_setaffinity(0, {self.core})  # of the thread that loads
        random, start = np.random.default_rng(0), time.thread_time()
        for number in range(self.count):
            chosen = [self.files[(number * self.batch + i) % len(self.files)] for i in range(self.batch)]
            rows = [
                np.mean([augmented(decoded(file), random) for _ in range(self.views)], axis=0, dtype=np.float32)
                for file in chosen
            ]
            batch = {"x": torch.from_numpy(np.stack(rows)), "t": torch.arange(self.batch) % 10}
            self.cpu = time.thread_time() - start
            yield batch


def make_step(device: str, batch: int, steps: int) -> Any:
    """A small convolution net's training step, compiled."""
    import pfvm

    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * (_CROP // 4) ** 2, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(inputs: dict[str, Any]) -> dict[str, Any]:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs["x"]), inputs["t"])
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    sample = {"x": torch.zeros(batch, 3, _CROP, _CROP), "t": torch.zeros(batch, dtype=torch.int64)}
    own = {"threads": 1} if device.startswith("pfvm:") else {}
    return pfvm.compile(step, sample, device=device, steps_per_call=steps, device_options=own)


def measure(device: str, batch: int, steps: int, calls: int, depth: int, cores: tuple[int, int]) -> dict[str, Any]:
    """Seconds of an epoch of `calls` calls: loading alone, computing alone, one after the other, and overlapped."""
    import pfvm

    torch = importlib.import_module("torch")
    compute, load = cores
    os.sched_setaffinity(0, {compute})  # before jax starts: its threads take it over
    torch.set_num_threads(1)
    step = make_step(device, batch, steps)
    images = np.random.default_rng(1).integers(0, 255, (32, 9, 9, 3), np.uint8).repeat(8, 1).repeat(8, 2)
    loader = Loader([png(image) for image in images], batch, calls * steps, None)
    ready = next(iter(pfvm.prefetch(loader, step, 1)))
    step(ready)
    computing = min(_seconds(lambda: step(ready)) for _ in range(_ROUNDS)) * calls
    loading = _loading(loader)
    loader.views = max(1, round(computing / loading))

    def plain() -> None:
        waiting: list[Any] = []
        for one in loader:
            waiting.append(one)
            if len(waiting) == steps:
                step({name: torch.stack([each[name] for each in waiting]) for name in one})
                waiting.clear()

    def overlapped() -> None:
        for one in pfvm.prefetch(loader, step, depth):
            step(one)

    times: dict[str, list[float]] = {"load": [], "plain": [], "prefetch": []}
    used: list[tuple[float, float, float]] = []  # processor time: in turns, overlapped, and of the loader in that
    before = os.getloadavg()[0]
    for _ in range(_ROUNDS):  # in turns
        times["load"].append(_loading(loader))
        loader.core = None
        start = time.process_time()
        times["plain"].append(_seconds(plain))
        middle = time.process_time()
        loader.core = load
        times["prefetch"].append(_seconds(overlapped))
        used.append((middle - start, time.process_time() - middle, loader.cpu))
        loader.core = None
    turns, both, loaded = (statistics.median(column) for column in zip(*used))
    least = {name: min(found) for name, found in times.items()}  # what else runs here only adds
    return {
        "device": device,
        "steps_per_call": steps,
        "depth": depth,
        "seconds": {"compute": computing, **least},
        "load_per_compute": least["load"] / computing,
        "speedup": least["plain"] / least["prefetch"],
        "cpu_seconds": {"plain": turns, "prefetch": both, "its loader": loaded},
        "speedup_by_cpu_time": turns / max(loaded, both - loaded),
        "load_average_before": before,
        "median_speedup": statistics.median(a / b for a, b in zip(times["plain"], times["prefetch"])),
    }


def _loading(loader: Loader) -> float:
    return _seconds(lambda: [None for _ in loader])


def _seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main(arguments: list[str] | None = None) -> None:
    """Prints one line a device, or writes JSON."""
    parser = argparse.ArgumentParser(prog="python -m pfvm.tools.bench.prefetch", description=__doc__)
    parser.add_argument("--device", action="append", help="default: xla:cpu")
    parser.add_argument("--prefetch", type=int, default=2, help="calls' batches that may wait (default: 2)")
    parser.add_argument("--steps-per-call", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--calls", type=int, default=6, help="of an epoch")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("prefetch: this measures two cores, and only one is there")
    found = [
        measure(device, given.batch, given.steps_per_call, given.calls, given.prefetch, (cores[0], cores[1]))
        for device in given.device or ["xla:cpu"]
    ]
    for row in found:
        seconds = row["seconds"]
        print(
            f"{row['device']}: loading {seconds['load']:.3f} s, computing {seconds['compute']:.3f} s; one after the "
            f"other {seconds['plain']:.3f} s, prefetched {seconds['prefetch']:.3f} s: {row['speedup']:.2f} times faster"
        )
        print(f"  by processor time at best {row['speedup_by_cpu_time']:.2f} times", end="")
        print(f"; noisy: load {row['load_average_before']:.1f} before" if row["load_average_before"] > 0.5 else "")
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
