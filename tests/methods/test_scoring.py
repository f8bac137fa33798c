"""Predictors that share their backbones share the pass over the images."""

from typing import final

import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.data.images import TensorImages
from grace.methods.classifier import Classifier
from grace.methods.finetune import Finetune
from grace.methods.scoring import scores
from support.tiny_streams import labelled, learner, recipe


@final
class Pixel(nn.Module):
    """Images → one pixel per channel; counts the images it saw."""

    seen = 0

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place

    @override
    def forward(self, images: Tensor) -> Tensor:
        if isinstance(images, Tensor):  # not the proxy of a trace
            Pixel.seen += len(images)
        return images[:, :, self.place, self.place]


def test_one_pass_per_group_of_backbones() -> None:
    trainer = learner(Finetune.Settings(base=recipe())).model.trainer
    first, second = Pixel(1), Pixel(6)
    data = labelled({0: 4, 3: 3})
    Pixel.seen = 0
    found = scores(
        trainer,
        {
            "sum": Classifier([first], lambda features: features.sum(1, keepdim=True)),
            "twice": Classifier([first], lambda features: 2 * features),
            "both": Classifier([first, second], lambda features: features),
        },
        data,
    )
    # One pass for the first two, one with two backbones for the third.
    assert Pixel.seen == 7 + 2 * 7
    assert isinstance(data.images, TensorImages)
    pixels = (data.images.pixels.float() / 255 - 0.4) / 0.3
    low, high = pixels[:, :, 1, 1], pixels[:, :, 6, 6]
    torch.testing.assert_close(found["sum"], low.sum(1, keepdim=True))
    torch.testing.assert_close(found["twice"], 2 * low)
    torch.testing.assert_close(found["both"], torch.cat([low, high], dim=1))


def test_no_predictors_need_no_pass() -> None:
    trainer = learner(Finetune.Settings(base=recipe())).model.trainer
    assert scores(trainer, {}, labelled({0: 1})) == {}
    assert trainer.work == []
