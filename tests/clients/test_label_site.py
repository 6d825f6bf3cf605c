"""A hospital's own labels are read in the order of their places, and no mistake in them shows a label."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.label_site import LABELS_FILE, read_label_site, read_own_labels
from clients.policy import Policy
from clients.site import SITE_VARIABLE
from pate_fed.errors import InputError


def test_labels_come_in_the_order_of_their_places(tmp_path: Path) -> None:
    path = tmp_path / LABELS_FILE
    path.write_text("index,label\n7,0\n2,1\n5,2\n", encoding="utf-8")
    index, label = read_own_labels(path, pool_size=8, num_classes=3)
    assert (index.tolist(), label.tolist()) == ([2, 5, 7], [1, 2, 0])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "index,label\n",
        "a,b\n0,77\n",
        "index,label\n0\n",
        "index,label\n0,77 77\n",
        "index,label\n0,77\n0,77\n",
        "index,label\n8,77\n",
        "index,label\n-1,77\n",
        "index,label\n0,77\n",
    ],
)
def test_no_mistake_shows_a_label(text: str, tmp_path: Path) -> None:
    path = tmp_path / LABELS_FILE
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_own_labels(path, pool_size=8, num_classes=3)
    assert "77" not in str(caught.value).replace(str(tmp_path), "")


def test_a_simulated_hospital_has_a_folder_and_a_policy_if_one_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SITE_VARIABLE, str(tmp_path))
    site = read_label_site({"partition-id": 2})
    assert (site.party, site.number, site.simulated) == ("hospital-2", 2, True)
    assert site.labels == tmp_path / "hospital-2" / "labels.csv"
    assert site.policy is None
    site.state_dir.mkdir()
    (site.state_dir / "policy.toml").write_text("most_queries = 5\n", encoding="utf-8")
    assert site.policy == Policy(most_queries=5)
    with pytest.raises(InputError, match="partition-id"):
        read_label_site({})
