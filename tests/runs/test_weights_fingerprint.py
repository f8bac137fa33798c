from pathlib import Path

import pytest
import torch

from grace.base.randomness import generator
from grace.base.tensors import encode
from grace.nn.resnets import CifarResNet
from grace.runs.provenance import fingerprints
from grace.settings.experiment import BackboneSettings, ExperimentSettings

VERSIONS = {"grace": "0.0.0", "python": "3.12.0", "torch": "2.0"}


def test_weights_count_by_what_they_are_not_by_where_they_lie(tmp_path: Path) -> None:
    state = CifarResNet(20, 3, generator(3)).state_dict()
    changed = {name: tensor.clone() for name, tensor in state.items()}
    changed["stem.0.weight"].view(-1)[0] += 1e-3
    counted = {**state, "stem.1.num_batches_tracked": torch.tensor(9)}
    files = {"one": state, "moved": state, "counted": counted, "changed": changed}
    found: dict[str, dict[str, str]] = {"none": fingerprints(with_weights("none"), "00", VERSIONS)}
    for name, tensors in files.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(encode(tensors))
        found[name] = fingerprints(with_weights(str(path)), "00", VERSIONS)
    # Nothing that the network computes depends on the counter of steps.
    assert found["one"] == found["moved"] == found["counted"]
    for kind in ("protocol", "run", "first_task"):
        assert len({found[name][kind] for name in ("none", "one", "changed")}) == 3


def test_weights_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(ValueError, match=r"absent.safetensors' is missing"):
        fingerprints(with_weights("absent.safetensors"), "00", VERSIONS)


def with_weights(weights: str) -> ExperimentSettings:
    return ExperimentSettings(backbone=BackboneSettings(name="resnet20", weights=weights))
