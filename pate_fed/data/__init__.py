"""Data sets, their cache, and how private records are dealt out to parties and teachers.

Images are `uint8` arrays `(n, height, width, channels)`, labels `int64 (n,)`; both are read-only memory maps
of files in the user's cache, so that many processes share one copy. Importing this room imports NumPy and
nothing heavier.

Begin with `dataset.py`, what a study learns from, and `schema.py`: what a table's columns mean.
`csv_file.py`, `pictures.py` and `formats.py` read files, `table.py` a hospital's table by its own settings
(`own_columns.py`), `partition.py` deals out records, `glyph.py` draws the default data set.
"""

from pate_fed.data.dataset import (
    DATASETS,
    Dataset,
    contact_sheet,
    first_equal,
    load_dataset,
    pool_digest,
    release_pages,
    repeated_inputs,
)
from pate_fed.data.files import InputSpec, dataset_from_files, read_pool, read_records
from pate_fed.data.own import as_dataset, check_dataset, check_parts, from_partitions, from_torchvision
from pate_fed.data.partition import held_out, is_scheme, partition, split_among_teachers, split_by_patient
from pate_fed.data.schema import Schema
from pate_fed.data.source import GlyphSettings
from pate_fed.data.table import Rows

__all__ = [
    "DATASETS",
    "Dataset",
    "GlyphSettings",
    "InputSpec",
    "Rows",
    "Schema",
    "as_dataset",
    "check_dataset",
    "check_parts",
    "contact_sheet",
    "dataset_from_files",
    "first_equal",
    "from_partitions",
    "from_torchvision",
    "held_out",
    "is_scheme",
    "load_dataset",
    "partition",
    "pool_digest",
    "read_pool",
    "read_records",
    "release_pages",
    "repeated_inputs",
    "split_among_teachers",
    "split_by_patient",
]
