"""Fingerprints of runs with pre-trained weights; those without weights keep theirs."""

from pathlib import Path

import pytest
import torch

from grace.base.randomness import generator
from grace.base.tensors import encode
from grace.nn.cifar_resnet import CifarResNet
from grace.runs.provenance import fingerprints
from grace.settings.experiment import BackboneSettings, ExperimentSettings
from grace.settings.load import load_experiment

VERSIONS = {"grace": "0.0.0", "python": "3.12.0", "torch": "2.0"}


@pytest.mark.parametrize(
    ("settings", "data", "expected"),
    [
        # Computed before there was a setting for weights (version 0.1).
        (
            ExperimentSettings(),
            "00",
            {
                "protocol": "f67f0d19441b2b94db5a8e23e19ecea37ab444e091d76d6e9c84892b0c323f35",
                "run": "b8c9bba19574697c4316b0b87e29eaac151bf5bedf17bfa2e1623afc382cc7e8",
                "first_task": "885c65de027dcba32324c46b49cb6198d6ebc0ad6c1400fa7db68415de975c2f",
            },
        ),
        (
            load_experiment("cifar100-b0i10"),
            "ab",
            {
                "protocol": "9de6f71a44259bf7c60c0c6f62edf883dae2b3419b5d9993c458e91c4126d24e",
                "run": "9a141b9f8ffa5f882cc4353d78031ac2e1e562cc4964fddb02de665ff0da5319",
                "first_task": "c2a30969adc0d4c20d8a08619cf783a5246bfb76019863ec30b48f824cdca444",
            },
        ),
    ],
)
def test_without_weights_fingerprints_are_those_of_earlier_versions(
    settings: ExperimentSettings, data: str, expected: dict[str, str]
) -> None:
    assert fingerprints(settings, data, VERSIONS) == expected


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
