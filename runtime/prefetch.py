"""`pfvm.prefetch`: the next batches are loaded and put on the device while a call runs."""

from __future__ import annotations

import itertools
import queue
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pfvm.errors import InputError, OptionError, short

from .executable import check_feeds

if TYPE_CHECKING:
    from .compiled import CompiledFunction
    from .torch_step import Ready

_POLL_SECONDS = 0.1  # how long a thread that nobody waits for any more may take to notice


def prefetch(batches: Iterable[Any], step: CompiledFunction, depth: int = 2) -> Prefetch:
    """Batches loaded by another thread, for a compiled function: `for batch in pfvm.prefetch(loader, f): f(batch)`

    While a call runs, the thread takes the next batches from `batches` (a DataLoader, a list, a generator: each what
    one step takes), checks them and puts them on the device. Results are those of `for batch in batches: step(batch)`,
    in that order, random numbers included: each batch comes with the seeds that its call would have drawn.

    step: what `pfvm.compile` returned. With steps_per_call=K, K batches are stacked for a call; what is left at the end
        is fewer than K batches and waits (`left_over` of the iterator counts it).
    depth: how many calls' batches may be ready and waiting.

    An error of the loader, or of a batch that does not fit, is raised in the loop, behind the batches before it. The
    thread ends with the loop, however that ends. To go over the data again, loop over the result again.
    Raises OptionError for what is no compiled function, and for a depth below 1.
    """
    from .compiled import CompiledFunction

    if not isinstance(step, CompiledFunction):
        raise OptionError(f"prefetch takes a function that pfvm.compile returned, not {short(step)}")
    if type(depth) is not int or depth < 1:
        raise OptionError(f"depth={depth!r}: expected a whole number of 1 or more")
    if not isinstance(batches, Iterable):
        raise OptionError(f"prefetch takes batches to loop over, not {short(batches)}")
    return Prefetch(batches, step, depth)


class Prefetch:
    """Every loop over it is one pass over its batches."""

    def __init__(self, batches: Iterable[Any], step: CompiledFunction, depth: int) -> None:
        self._batches = batches
        self._step = step
        self._depth = depth

    def __iter__(self) -> Pass:
        # Here, in the caller's thread: some loaders draw their order from a generator now.
        return Pass(iter(self._batches), self._step, self._depth)


class Prefetched:
    """A call's batch, ready on the device."""

    def __init__(self, step: CompiledFunction, feeds: Mapping[str, Any], ready: Ready | None) -> None:
        self._step = step
        self._feeds = dict(feeds)
        self._ready = ready

    def run(self, step: CompiledFunction) -> dict[str, Any]:
        """Results by name. Raises InputError where it was made for another function."""
        if step is not self._step:
            raise InputError(f"this batch was prefetched for {self._step!r}, and not for {step!r}")
        state = step.step
        if state is None:
            return step.run(self._feeds)
        return state.run({}, self._ready)


class Pass(Iterator[Prefetched]):
    """One pass. `left_over`: batches at its end that were too few for a call."""

    def __init__(self, source: Iterator[Any], step: CompiledFunction, depth: int) -> None:
        self._line: queue.Queue[_Item] = queue.Queue(depth)
        self._stop = threading.Event()
        self.left_over = 0
        self._thread = threading.Thread(
            target=_fill, args=(source, step, self._line, self._stop), name="pfvm prefetch", daemon=True
        )
        self._finalizer = weakref.finalize(self, self._stop.set)
        self._thread.start()

    def __next__(self) -> Prefetched:
        if self._stop.is_set():
            raise StopIteration
        kind, value = self._line.get()
        if kind == "batch":
            return value
        self.close()
        if kind == "error":
            raise value
        self.left_over = value
        raise StopIteration

    def close(self) -> None:
        """End the thread, when it has loaded the batch that it is at."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()


_Item = tuple[str, Any]  # "batch", "error" or "end", with a Prefetched, an exception, or how many are left over


def _fill(source: Iterator[Any], step: CompiledFunction, line: queue.Queue[_Item], stop: threading.Event) -> None:
    """What the thread does. It knows nothing of the pass, so that a pass that nobody has any more can end it."""
    try:
        left_over = 0
        while not stop.is_set():
            made, left_over = _next(source, step)
            if made is None or not _offer(("batch", made), line, stop):
                break
        _offer(("end", left_over), line, stop)
    except BaseException as error:  # it belongs to whoever loops
        _offer(("error", error), line, stop)
    finally:
        close = getattr(source, "close", None)  # a generator's own cleanup runs in the thread that ran it
        if close is not None:
            close()


def _next(source: Iterator[Any], step: CompiledFunction) -> tuple[Prefetched | None, int]:
    count = step.steps_per_call
    several = len(step.signature.argument_names) > 1  # a loader then yields one tuple of them
    taken = itertools.islice(source, count or 1)
    batches = [
        step.feeds(*batch) if several and isinstance(batch, (tuple, list)) else step.feeds(batch) for batch in taken
    ]
    if len(batches) < (count or 1):
        return None, len(batches)
    names = batches[0]
    arrays = {name: batches[0][name] if count is None else _stacked(name, batches) for name in names}
    specs = step.executable.inputs
    checked = check_feeds([spec for spec in specs if spec.name in arrays], (), arrays)
    if step.step is None:
        return Prefetched(step, {name: np.array(array) for name, array in checked.items()}, None), 0
    return Prefetched(step, {}, step.step.ready(checked)), 0


def _stacked(name: str, batches: list[dict[str, Any]]) -> np.ndarray[Any, Any]:
    arrays = [np.asarray(batch[name]) for batch in batches]
    for array in arrays[1:]:
        if array.shape != arrays[0].shape:
            raise InputError(
                f"input {name!r}: the batches of a call have shapes {list(arrays[0].shape)} and {list(array.shape)}; "
                "drop the smaller last batch of the data, or compile one step a call"
            )
    return np.stack(arrays)


def _offer(item: _Item, line: queue.Queue[_Item], stop: threading.Event) -> bool:
    """Put it in the line when there is room; False where nobody waits for it any more."""
    while not stop.is_set():
        try:
            line.put(item, timeout=_POLL_SECONDS)
            return True
        except queue.Full:
            continue
    return False
