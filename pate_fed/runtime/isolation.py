"""Keeps the files of the current folder out of what a command and its children import.

`python -m` puts the current folder first on `sys.path`, and a `torch.py` or a `clients/` there would be run
beside private records. Every entry point imports this module before anything else, the standard library too;
hence it imports only what Python itself has loaded by then (`from __future__` would be an import as well).
"""

import os
import sys

_SCRIPTS = {"flower-simulation", "pate-fed", "pate-fed-coordinator", "pate-fed-health", "pate-fed-hospital"}
_COMMANDS = {"pate_fed", *_SCRIPTS}
_HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def without_folder(entries: list[str], folder: str) -> list[str]:
    """The entries of a search path without `folder` and without empty ones, which mean the current folder."""
    return [entry for entry in entries if entry and os.path.realpath(entry) != folder]


def require_one_installation() -> None:
    """Make sure that the top-level packages `clients` and `server` are this installation's; imports neither.

    Raises:
        InputError: another package or module of that name is found first, or none; or a name of a file or
            folder that the command works with cannot be written down in UTF-8.
    """
    from importlib.util import find_spec

    from pate_fed.errors import InputError

    try:
        here = os.getcwd()
    except OSError:  # the folder is gone
        here = ""
    for given in (here, *sys.argv[1:]):
        if not given.isascii() and any("\ud800" <= letter <= "\udfff" for letter in given):
            raise InputError(
                f"{given}: the name is not in the encoding that Python reads names in here "
                f"({sys.getfilesystemencoding()}); set PYTHONUTF8=1 (or LC_ALL=C.UTF-8), or rename it"
            )
    for name in ("clients", "server"):
        spec, own = find_spec(name), os.path.join(_HOME, name)
        found = [] if spec is None else list(spec.submodule_search_locations or [str(spec.origin)])
        if [os.path.realpath(place) for place in found] != [own]:
            where = f"in {found[0]}" if found else "nowhere"
            raise InputError(
                f"Python finds {name!r} {where}, but pate_fed needs its own in {own}: install it into a "
                "virtual environment that holds nothing else of that name"
            )


def _is_command() -> bool:
    """Whether this process is one of our commands; a program that imports us keeps its own search path."""
    if sys.argv[:1] == ["-m"]:  # Python imports the packages above the module that it is to run
        return any(each.removeprefix("-m").partition(".")[0] in _COMMANDS for each in sys.orig_argv)
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    name = os.path.basename(getattr(main, "__file__", None) or "") if spec is None else spec.name
    return name.partition(".")[0] in _COMMANDS


def _isolate() -> None:
    """Clean the search path of this process and of every child to come."""
    try:
        current = os.path.realpath(os.getcwd())
    except OSError:  # the folder is gone
        current = ""
    inherited = [os.path.abspath(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    if current == _HOME:  # a checkout: its folder is the installation
        inherited = [*without_folder(inherited, _HOME), _HOME]
    else:
        sys.path[:] = without_folder(sys.path, current)
        inherited = without_folder(inherited, current)
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(inherited)
    if not inherited:
        del os.environ["PYTHONPATH"]


def _open_streams() -> None:
    """Stand in for closed standard streams: no file that is opened later may get their numbers."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            given = os.open(os.devnull, os.O_RDWR)  # the lowest that is free
            os.set_inheritable(given, True)
            setattr(sys, name, open(given, mode, encoding="utf-8", closefd=False))


if _is_command():
    _open_streams()
    _isolate()
