"""What every reproduction is told, and where it finds its data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from pate_fed.data import Dataset, load_dataset
from pate_fed.errors import InputError

__all__ = ["Reproduction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """How it is done: `paper` takes the paper's networks and 400 epochs, else the small ones and 20.

    `tables` are those of PATE++ to fill, None the paper's 1, 2 and 3 (4 is Table I with a public encoder at
    teachers and students); `totals` names a .npz or .npy with ready totals (9000, 10); `data_dir` None stands
    for the environment's PATE_FED_DATA. `workers` are the processes that train students side by side, where
    a reproduction has many alike.

    Raises:
        InputError: no seeds or workers at all, or `totals` is no file.
    """

    data_dir: Path | None
    out_dir: Path
    paper: bool = False
    seeds: int = 5
    tables: tuple[int, ...] | None = None
    device: str = "cpu"
    totals: Path | None = None
    workers: int = 1

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise InputError(f"seeds is {self.seeds}: a whole number of at least 1 is meant")
        if self.workers < 1:
            raise InputError(f"--workers {self.workers}: a whole number of at least 1 is meant")
        if self.totals is not None and not self.totals.is_file():
            raise InputError(f"--totals {self.totals}: no such file; a .npz or .npy with totals is meant")

    def chosen(self) -> Iterator[str]:
        """Those options that not every command takes and that are not left as they are."""
        for entry in fields(self):
            if entry.name in ("paper", "seeds", "tables", "totals", "workers"):
                if getattr(self, entry.name) != entry.default:
                    yield f"--{entry.name}"

    def file(self, name: str, kind: str) -> Path:
        """A file of the output, apart for each scale."""
        return self.out_dir / f"{name}-{'paper' if self.paper else 'quick'}.{kind}"

    def load(self, name: str) -> Dataset:
        """The data set `name`.

        Raises:
            InputError: its files are not there.
        """
        return load_dataset(name, data_dir=self.data_dir)

    def published(self, name: str) -> Path:
        """A file that the authors of PATE published with their votes on MNIST.

        Raises:
            InputError: it is not there.
        """
        path = None if self.data_dir is None else self.data_dir / "pate_votes" / name
        if path is None or not path.exists():
            raise InputError(f"--data-dir: {path or name} is not there; the authors' votes are meant")
        return path
