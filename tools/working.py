"""A progress bar with the time left, for what takes longer than two seconds, on a terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pfvm.compiler import progress

from .console import err, is_quiet

if TYPE_CHECKING:
    from rich.progress import Progress

DELAY = 2.0  # seconds before anything is shown


@contextmanager
def working(title: str) -> Iterator[None]:
    """Shows on stderr what the work inside reports (`pfvm.compiler.progress`), and nothing with --quiet.

    Leave it before results are printed: it erases its line.
    """
    console = None if is_quiet() else err()
    if console is None or not console.is_terminal:
        yield
        return
    bar = Bar(title, console)
    timer = threading.Timer(DELAY, bar.show)
    timer.daemon = True
    timer.start()
    try:
        with progress.listening(bar.update):
            yield
    finally:
        timer.cancel()
        bar.close()


class Bar:
    """One line: what is done, the part, the time so far and the time left. Reports may come before it is shown."""

    def __init__(self, title: str, console: Any) -> None:
        self.title, self.what, self.part = title, "", None  # type: tuple[str, str, float | None]
        self._console = console
        self._start = time.monotonic()
        self._lock = threading.Lock()  # the timer shows it, the worker updates and closes it
        self._shown: tuple[Progress, Any] | None = None
        self._closed = False

    def show(self) -> None:
        """Begins to draw, unless the work is done."""
        from rich import progress as rich

        with self._lock:
            if self._closed:
                return
            columns = (
                rich.SpinnerColumn(),
                rich.TextColumn("{task.description}"),
                rich.BarColumn(bar_width=24),
                rich.TimeElapsedColumn(),
                rich.TextColumn("{task.fields[left]}"),
            )
            drawn = rich.Progress(*columns, console=self._console, transient=True)
            task = drawn.add_task(self._text(), total=None, left="")
            drawn.tasks[0].start_time = drawn.get_time() - (time.monotonic() - self._start)
            drawn.start()
            self._shown = drawn, task
            self._draw()

    def update(self, what: str, part: float | None) -> None:
        """A report of the work."""
        with self._lock:
            self.what, self.part = what, part
            self._draw()

    def close(self) -> None:
        """Erases the line."""
        with self._lock:
            self._closed = True
            if self._shown is not None:
                self._shown[0].stop()

    def left(self) -> float | None:
        """Seconds until the end, if the rest goes as fast as what is done; None where nobody can tell."""
        if not self.part:
            return None
        return (time.monotonic() - self._start) * (1 - self.part) / self.part

    def _text(self) -> str:
        return f"{self.title}: {self.what}" if self.what else self.title

    def _draw(self) -> None:
        if self._shown is None:
            return
        drawn, task = self._shown
        left = self.left()
        drawn.tasks[0].total = None if self.part is None else 1.0  # update() takes None for "as before"
        text = "" if left is None else f"{_clock(left)} left"
        drawn.update(task, description=self._text(), completed=self.part or 0.0, left=text)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
