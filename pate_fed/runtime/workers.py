"""Tasks side by side, a process a core, as students of networks that are too small to share more than one.

Not beside the reproductions, which use it: a worker imports what its task needs, and nothing before.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from threading import Thread
from typing import Any, TypeVar

from pate_fed.errors import PateFedError

MOST_WORKERS = 8  # of about a gigabyte each
T = TypeVar("T")
R = TypeVar("R")

_THREADS = "OMP_NUM_THREADS"
_work: Callable[[Any], Any] | None = None  # of a worker: given once, as it holds the data


def cores() -> int:
    """Processes that a call uses on a CPU where nobody says how many."""
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)))


def as_ready(work: Callable[[T], R], tasks: Sequence[T], *, workers: int) -> Iterator[R]:
    """`work` of every task: with one worker here and in turn, else in processes and as they are ready.

    `work`, tasks and results are pickled; a worker's arithmetic is of one thread. An error or an interruption
    ends the workers.

    Raises:
        PateFedError: a worker was killed.
    """
    workers = min(workers, len(tasks))
    if workers <= 1:
        yield from map(work, tasks)
        return
    context = get_context("spawn")  # a fork would copy torch's threads
    with ProcessPoolExecutor(workers, context, initializer=_start, initargs=(work,)) as pool:
        try:
            for future in as_completed(_submitted(pool, tasks)):
                yield future.result()
        except BaseException as error:
            for child in active_children():
                child.terminate()
            if isinstance(error, BrokenProcessPool):
                raise PateFedError(
                    f"one of {workers} processes was killed, perhaps for want of memory; what was done is "
                    "kept, and the same command with a smaller --workers goes on from there"
                ) from error
            raise


def _submitted(pool: ProcessPoolExecutor, tasks: Sequence[Any]) -> list[Future[Any]]:
    """Every task; workers start here, and inherit one thread and that Ctrl-C is the parent's to handle."""
    threads = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return [pool.submit(_run, task) for task in tasks]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        os.environ.pop(_THREADS)
        if threads is not None:
            os.environ[_THREADS] = threads


def _start(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work
    Thread(target=end_with_the_call, daemon=True).start()


def end_with_the_call() -> None:
    """A call that was killed ends nobody, and its workers would wait for tasks for ever."""
    call = parent_process()
    assert call is not None
    call.join()
    os._exit(1)


def _run(task: Any) -> Any:
    assert _work is not None
    return _work(task)
