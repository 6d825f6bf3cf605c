"""DICOM images: windows, colours, patients, sizes, and what is refused without a tag in the error."""

from __future__ import annotations

import builtins
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydicom.dataset import Dataset as Tags
from pydicom.dataset import FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from pate_fed.config.data import fix_unit, load_study_data
from pate_fed.config.sections import Data, Parties, Privacy
from pate_fed.config.study import Study
from pate_fed.data import InputSpec, read_pool, read_records
from pate_fed.data.partition import patient_numbers
from pate_fed.data.pictures import read_dicom
from pate_fed.errors import InputError

SPEC = InputSpec(classes=("well", "ill"))


def write(path: Path, pixels: np.ndarray, *, patient: str = "Secret^Name", **tags: Any) -> Path:
    """A DICOM file of these pixels: int16 with 16 bits a value, uint8 with 8."""
    found = Tags()
    found.file_meta = FileMetaDataset()
    found.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    found.SOPClassUID, found.SOPInstanceUID = CTImageStorage, generate_uid()
    found.file_meta.MediaStorageSOPClassUID = CTImageStorage
    found.file_meta.MediaStorageSOPInstanceUID = found.SOPInstanceUID
    found.PatientID, found.PatientName = patient, "Secret^Name"
    found.Rows, found.Columns = pixels.shape[:2]
    found.SamplesPerPixel = pixels.shape[2] if pixels.ndim == 3 else 1
    found.PhotometricInterpretation = "RGB" if pixels.ndim == 3 else "MONOCHROME2"
    if pixels.ndim == 3:
        found.PlanarConfiguration = 0
    found.BitsAllocated = found.BitsStored = 8 * pixels.itemsize
    found.HighBit, found.PixelRepresentation = found.BitsStored - 1, int(pixels.dtype == np.int16)
    found.PixelData = pixels.tobytes()
    for name, value in tags.items():
        setattr(found, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    found.save_as(path, enforce_file_format=True)
    return path


def test_a_window_in_the_modalitys_units_says_what_is_black_and_white(tmp_path: Path) -> None:
    pixels = np.array([[0, 1024], [1064, 3000]], dtype=np.int16)  # -1024, 0, 40 and 1976 Hounsfield units
    path = write(tmp_path / "a.dcm", pixels, RescaleSlope=1, RescaleIntercept=-1024)
    picture, patient = read_dicom(path, window=(-160, 240))
    assert picture[..., 0].tolist() == [[0, 102], [128, 255]]  # 255·160/400 and 255·200/400, cut at both ends
    assert patient == "Secret^Name"
    inverse = write(
        tmp_path / "b.dcm", pixels, RescaleIntercept=-1024, PhotometricInterpretation="MONOCHROME1"
    )
    assert read_dicom(inverse, window=(-160, 240))[0][..., 0].tolist() == [[255, 153], [127, 0]]
    with pytest.raises(InputError, match=r"a\.dcm: 16 bits a value; .* data.window = \[black, white\]"):
        read_dicom(path)


def test_eight_bits_need_no_window_and_colours_stay(tmp_path: Path) -> None:
    grey = np.arange(6, dtype=np.uint8).reshape(2, 3) * 50
    np.testing.assert_array_equal(read_dicom(write(tmp_path / "a.dcm", grey))[0][..., 0], grey)
    colours = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    np.testing.assert_array_equal(read_dicom(write(tmp_path / "b.dcm", colours))[0], colours)


def test_another_size_is_brought_to_the_studys(tmp_path: Path) -> None:
    pixels = np.repeat(np.repeat(np.array([[10, 200], [90, 30]], dtype=np.uint8), 4, axis=0), 4, axis=1)
    picture, _ = read_dicom(write(tmp_path / "a.dcm", pixels), shape=(2, 2, 1))
    assert picture[..., 0].tolist() == [[10, 200], [90, 30]]


def test_a_folder_by_class_keeps_a_patients_images_together(tmp_path: Path) -> None:
    pixels = np.zeros((4, 4), dtype=np.uint8)
    for number, (kind, patient) in enumerate((("ill", "b"), ("ill", "a"), ("well", "b"))):
        write(tmp_path / kind / f"{number}.dcm", pixels + number, patient=patient)
    rows = read_records(tmp_path, SPEC)
    assert rows.inputs.shape == (3, 4, 4, 1)
    assert rows.labels.tolist() == [1, 1, 0]
    assert rows.patients.tolist() == patient_numbers(["b", "a", "b"]).tolist()
    write(tmp_path / "well" / "9.dcm", pixels, patient="")
    with pytest.raises(InputError, match=r"9\.dcm: has no PatientID, and others have"):
        read_records(tmp_path, SPEC)


def test_a_pool_of_files_without_patients(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.dcm", np.full((2, 2), number, dtype=np.uint8), patient="")
    assert read_pool(tmp_path, SPEC).patients.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        ({"NumberOfFrames": 3}, "3 frames"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "PALETTE COLOR"),
        ({"Rows": 65_000, "Columns": 65_000}, "pixels is meant"),
        ({"PixelData": b"\0\0"}, "cannot be decoded"),
    ],
)
def test_what_cannot_be_read_is_named_without_a_patient(
    tmp_path: Path, tags: dict[str, Any], words: str
) -> None:
    path = write(tmp_path / "a.dcm", np.zeros((4, 4), dtype=np.uint8), **tags)
    with pytest.raises(InputError, match=words) as caught:
        read_dicom(path)
    assert "Secret" not in str(caught.value)


def test_a_file_that_is_no_dicom_and_a_machine_without_pydicom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.dcm"
    path.write_bytes(b"x" * 200)
    with pytest.raises(InputError, match="not a DICOM file"):
        read_dicom(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_dicom(tmp_path / "none.dcm")
    imported = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("pydicom"):
            raise ImportError(name)
        return imported(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"pip install 'pate-fed\[dicom\]'"):
        read_dicom(path)


@pytest.mark.parametrize("window", [(240, -160), (5, 5)])
def test_a_window_ends_above_its_beginning(window: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="the first the smaller"):
        Data(dataset="images", pool="pool", classes=("a", "b"), window=window)


def test_patients_are_the_unit_of_a_simulation_whose_files_all_name_them(tmp_path: Path) -> None:
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 4)
    for party in ("north", "south"):
        for number, label in enumerate((*SPEC.classes, *SPEC.classes)):
            write(tmp_path / party / label / f"{number}.dcm", pixels, patient=f"p{number // 2}")
            write(tmp_path / "pool" / label / f"{number}.dcm", pixels + number, patient="")
    unnamed = tmp_path / "east"
    for number, label in enumerate(SPEC.classes):
        write(unnamed / label / f"{number}.dcm", pixels, patient="")

    def study(*parties: Path) -> Study:
        data = Data(
            dataset="images",
            classes=SPEC.classes,
            pool=str(tmp_path / "pool"),
            private=tuple(map(str, parties)),
            num_queries=2,
        )
        return Study(data=data, parties=Parties(num_clients=len(parties)))

    named = study(tmp_path / "north", tmp_path / "south")
    dataset = load_study_data(named)
    # A file's numbers are its own: two patients in each of two files are four.
    assert dataset.patients is not None
    assert np.unique(dataset.patients, return_index=True)[1].size == 4
    assert (dataset.patients[[0, 1, 4, 5]] == dataset.patients[[2, 3, 6, 7]]).all()
    assert fix_unit(named, dataset).privacy.unit == "patient"
    mixed = study(tmp_path / "north", unnamed)
    assert fix_unit(mixed, load_study_data(mixed)).privacy.unit == "record"
    asked = replace(mixed, privacy=Privacy(unit="patient"))
    with pytest.raises(InputError, match="nothing in these data names patients"):
        fix_unit(asked, load_study_data(mixed))
