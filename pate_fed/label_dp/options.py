"""Which options of `pate-fed label-dp` go together: one that would have no effect is refused, not ignored."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from pate_fed.errors import InputError
from pate_fed.label_dp.names import METHODS

__all__ = ["FILES", "settle_options"]

FILES = "files"  # the data set that a user has
_DEFAULTS = {
    "method": "randres+denoise-ssl",
    "dataset": "fashion-mnist",
    "network": "light",
    "clusterer": "light",
    "teachers": 250,
    "epochs": 5,
    "device": "cpu",
}
_OF_FILES = ("images", "labels", "test_images", "test_labels")
_OF_LEARNING = (
    *_DEFAULTS,
    *_OF_FILES,
    *("data_dir", "download", "clusters", "hospitals", "quorum", "backend", "policy", "init", "address"),
    *("tls_dir", "insecure", "insecure_anywhere", "seed", "out"),
)


def settle_options(arguments: argparse.Namespace) -> None:
    """Refuse options that would have no effect beside the others, and fill in what was left out.

    Raises:
        InputError: there is one; the message names it, and what it goes with.
    """
    given = {
        name: value for name, value in vars(arguments).items() if value is not None and value is not False
    }
    idle = dict.fromkeys(_OF_LEARNING, "does not go with --advise, which touches no data")
    if not arguments.advise:
        for name, value in _DEFAULTS.items():
            if getattr(arguments, name) is None:
                setattr(arguments, name, value)
        idle = dict(_idle(arguments))
    for name, value in given.items():
        if name in idle:
            shown = "" if value is True else f" {value}"
            raise InputError(f"--{name.replace('_', '-')}{shown}: {idle[name]}")


def _idle(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Options that would have no effect where labels are learnt from, each with the reason."""
    dataset, method = arguments.dataset, arguments.method
    yield "abundant_compute", "goes with --advise"
    if dataset == FILES:
        yield "records", "goes with --advise or a named data set; of --dataset files all records are taken"
        for name in ("data_dir", "download"):
            yield name, "goes with a named data set; --dataset files has --images and --labels"
        if arguments.test_images is None:
            yield "test_labels", "give --test-images FILE too, whose labels these are"
    else:
        yield "classes", f"goes with --advise or --dataset files; {dataset} says how many it has"
        for name in _OF_FILES:
            yield name, f"goes with --dataset files; {dataset} has images and labels of its own"
    if method not in METHODS:
        return  # which is refused by its name
    if not method.startswith("pate-fm"):
        yield "teachers", f"goes with --method pate-fm; {method} has no teachers"
    if method == "noise-cluster":
        for name in ("network", "epochs"):
            yield name, "does not go with --method noise-cluster, which trains no network"
    elif not method.endswith("denoise-ssl"):
        for name in ("clusterer", "clusters"):
            yield name, f"goes with --method noise-cluster or one with denoise-ssl; {method} has no clusters"
