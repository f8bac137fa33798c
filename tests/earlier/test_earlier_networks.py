"""Networks that people use, saved by an earlier grace, find the place of each of their tensors."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from earlier_files import NETWORKS, WHOLE_NETWORKS, facts, said, unpack
from grace.learner.learner import Learner


@pytest.fixture(scope="module")
def networks() -> Iterator[Path]:
    """Unpacked for these tests only: they are large."""
    with TemporaryDirectory() as place:
        unpack(WHOLE_NETWORKS, Path(place))
        yield Path(place)


@pytest.mark.parametrize("method", ["memo", "finetune"])
@pytest.mark.parametrize("name", NETWORKS)
def test_its_scores_are_the_same(name: str, method: str, written: Path, networks: Path) -> None:
    """Each tensor of these files holds a number of its own: one in another's place would show."""
    if name == "timm":
        pytest.importorskip("timm", reason="the timm extra is not installed")
    learner = Learner.load(networks / f"{name}-{method}")
    found = torch.tensor(said(written / "images", learner)["linear"])
    scores = torch.tensor(facts(networks / f"{name}-{method}.json")["scores"]["linear"])
    assert len(scores.unique()) > 10  # They tell images from each other.
    torch.testing.assert_close(found, scores, rtol=1e-4, atol=0)
