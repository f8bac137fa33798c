"""Networks that people use, saved by an earlier grace, find the place of each of their tensors."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from earlier_files import NETWORKS, facts, said, unpack

from grace.learner.learner import Learner


@pytest.mark.parametrize("method", ["memo", "finetune"])
@pytest.mark.parametrize("name", NETWORKS)
def test_its_scores_are_the_same(name: str, method: str, written: Path) -> None:
    """Each tensor of these files holds a number of its own: one in another's place would show."""
    if name == "timm":
        pytest.importorskip("timm")
    with TemporaryDirectory() as place:
        folder = Path(place) / "networks"
        unpack(Path(place), lambda file: file.startswith(f"networks/{name}-{method}"))
        learner = Learner.load(folder / f"{name}-{method}")
        found = torch.tensor(said(written / "images", learner)["linear"])
        scores = torch.tensor(facts(folder / f"{name}-{method}.json")["scores"]["linear"])
    assert len(scores.unique()) > 10  # They tell images from each other.
    torch.testing.assert_close(found, scores, rtol=1e-4, atol=0)
