"""`pate-fed watch`: a study while it runs, from its run directory."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.cli.parser import Parser, add_command, add_option, print_lines
from pate_fed.errors import InputError
from pate_fed.format import printable
from pate_fed.runtime.run_dir import LOG_NAME

if TYPE_CHECKING:
    from pate_fed.report.watching import Snapshot

_DESCRIPTION = """\
Show a study while it runs: its phase, how many hospitals are ready, which were left out and why, ε against
what it can never pass, released labels by class, the student's curve. It takes the run directory of a
simulation or of a coordinator. A finished run is shown once. Ctrl-C ends the watching, never the study."""

_EPILOG = """\
It reads log.jsonl, labels.npz and the ledger, and changes nothing. Off a terminal it prints a line for each
thing that happens. --web prints the address of a page on this machine, which updates itself until Ctrl-C.
Nothing that is shown comes from private votes, but for the page with --analyst. A run that was killed never
says so: how long ago it was last heard of is shown."""

_EVERY_S = 0.5


def add_watch_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `watch`."""
    watch = add_command(commands, "watch", "a study while it runs", description=_DESCRIPTION, epilog=_EPILOG)
    watch.add_argument("run_dir", metavar="RUN_DIR", help="the --run-dir of a run, also of one under way")
    add_option(watch, "--web", "as a page on this machine (127.0.0.1), for a browser")
    add_option(watch, "--analyst", "with figures from private votes, which may not be published (--web)")
    watch.set_defaults(run=_watch)


def _watch(arguments: argparse.Namespace) -> int:
    run_dir = Path(arguments.run_dir)
    if not any((run_dir / name).is_file() for name in ("study.toml", LOG_NAME)):
        raise InputError(f"{run_dir}: holds no run; give the --run-dir of one that is under way or finished")
    if arguments.web:
        _serve(run_dir, analyst=arguments.analyst)
        return 0
    if arguments.analyst:
        raise InputError("--analyst: the page alone shows such figures; give --web, too")
    from pate_fed.report.terminal import can_draw

    (_show if can_draw(sys.stdout) else _print)(run_dir)
    return 0


def _serve(run_dir: Path, *, analyst: bool) -> None:
    """A page on loopback that tells of the run, also when it is over, until Ctrl-C."""
    from pate_fed.cli.watch_web import News, WatchServer, render_parts, render_watch_page
    from pate_fed.report.html import asset

    news, moments = News(), _moments(run_dir)
    now = next(moments)
    files = {
        "style.css": (asset("report.css"), "text/css"),
        "watch.js": (asset("watch.js"), "text/javascript"),
    }
    # Whoever opens it gets what was read last: reading it again is the loop's alone.
    server = WatchServer(news, lambda: render_watch_page(now, run_dir, analyst=analyst), files)
    thread = threading.Thread(target=server.serve_forever, name="watch", daemon=True)
    thread.start()
    try:
        print(f"{server.url}\nthis address is for you alone; Ctrl-C ends it, never the study", flush=True)
        while True:
            over = now is not None and now.over
            news.tell(render_parts(now, run_dir, analyst=analyst), over=over)
            now = next(moments)
    finally:
        news.close()
        server.shutdown()
        server.server_close()
        thread.join()


def _moments(run_dir: Path) -> Iterator[Snapshot | None]:
    """The run as it stands, now and then and without an end; read again where its log has grown."""
    from pate_fed.report.watching import read_snapshot

    now, size, log = None, -1, run_dir / LOG_NAME
    while True:
        size, before = log.stat().st_size if log.is_file() else -1, size
        if size != before:
            now = read_snapshot(run_dir)
        yield now
        time.sleep(_EVERY_S)


def _print(run_dir: Path) -> None:
    """A line for each event, until the run is over."""
    from pate_fed.report.watching import describe_event, snapshot_rows

    told = 0
    for now in filter(None, _moments(run_dir)):
        lines = [describe_event(event, now) for event in now.told[told:]]
        told = len(now.told)
        if now.over:
            last = lines.pop() if lines and lines[-1] else None
            lines += [f"{name}: {text}" for name, text in snapshot_rows(now) if name == "by class"]
            lines.append(last)
        print_lines(printable(line) for line in lines if line)
        if now.over:
            return


def _show(run_dir: Path) -> None:
    """A picture that is drawn again as the log grows, until the run is over."""
    from rich.live import Live

    with Live(_picture(None, run_dir), refresh_per_second=2) as live:
        for now in _moments(run_dir):
            live.update(_picture(now, run_dir))  # also without news: it says since when there is none
            if now is not None and now.over:
                return


def _picture(now: Snapshot | None, run_dir: Path) -> Any:
    from rich.table import Table
    from rich.text import Text

    from pate_fed.report.watching import snapshot_rows

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    rows = [("study", f"{run_dir}: waits for its begin")] if now is None else snapshot_rows(now)
    for name, text in rows:
        table.add_row(name, Text(printable(text), style="yellow" if name == "left out" else ""))
    return table
