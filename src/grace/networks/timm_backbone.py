"""Any image model of the timm library as a backbone (an extra)."""

from difflib import get_close_matches
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.networks.backbone import Backbone
from grace.randomness import seeded_globally


@final
class TimmBackbone(Backbone):
    """A timm model, freshly initialised and without its classifier.

    Args:
        name: timm's name of the model, without the ``timm/`` in front.
        num_channels: channels C of the images.
        seed: seed of the initialisation.
        purpose: words and counters that set this draw apart (``grace.randomness``).

    Raises:
        ValueError: if timm is not installed, has no such model, or the model gives no feature
            vector.
    """

    def __init__(self, name: str, num_channels: int, seed: int, *purpose: str | int) -> None:
        super().__init__()
        self.name = name
        with seeded_globally(seed, *purpose):
            self.body = _create(name, num_channels)
            self.feature_dim = _measured_width(self.body, name, num_channels)

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to features (B, feature_dim)."""
        return cast("Tensor", self.body(images))

    @override
    def stages(self) -> tuple[nn.Module, nn.Module]:
        """Return (everything before layer 4, layer 4 with pooling) of a model built like a ResNet.

        Raises:
            ValueError: if the model is built otherwise.
        """
        parts = dict(self.body.named_children())
        shallow = ("conv1", "bn1", "act1", "maxpool", "layer1", "layer2", "layer3")
        if tuple(parts) != (*shallow, "layer4", "global_pool", "fc"):
            raise ValueError(
                f"backbone 'timm/{self.name}' cannot be cut before its last stage, because it is "
                "not built like a ResNet: choose a ResNet for this method"
            )
        return (
            nn.Sequential(*(parts[part] for part in shallow)),
            nn.Sequential(parts["layer4"], parts["global_pool"]),
        )


def _create(name: str, num_channels: int) -> Any:  # noqa: ANN401 - timm's models carry extra fields
    try:
        # Late, because importing timm takes seconds, and it may be missing.
        import timm
    except ImportError as error:
        raise ValueError(
            f"backbone 'timm/{name}' needs timm: pip install 'grace-cil[timm]'"
        ) from error
    if not timm.is_model(name):
        near = get_close_matches(name, timm.list_models(), n=1)
        hint = f": did you mean 'timm/{near[0]}'?" if near else ": see timm.list_models()"
        raise ValueError(f"timm has no model '{name}'{hint}")
    return timm.create_model(name, pretrained=False, num_classes=0, in_chans=num_channels)


@torch.no_grad()
def _measured_width(body: Any, name: str, num_channels: int) -> int:  # noqa: ANN401 - see above
    # One image is passed because timm states widths under several names, none true for all models.
    height, width = body.default_cfg["input_size"][1:]
    was_training = body.training
    features = body.eval()(torch.zeros(1, num_channels, height, width))
    body.train(was_training)
    if not isinstance(features, Tensor) or features.ndim != 2:
        raise ValueError(
            f"backbone 'timm/{name}' gives no feature vector per image: choose another model"
        )
    return features.shape[1]
