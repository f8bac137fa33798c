"""A backbone that cannot work is refused when a learner is made."""

import pytest

from grace.learner.model import Model
from grace.settings.experiment import ExperimentSettings

pytest.importorskip("timm", reason="the timm extra is not installed")


@pytest.mark.parametrize(
    ("backbone", "method", "side", "message"),
    [
        ("timm/vit_tiny_patch16_224", "der", 8, r"cannot take images of .*data.image_size"),
        ("timm/mobilenetv3_small_050", "memo", 32, "cannot be cut before its last stage"),
        ("timm/mobilenetv3_small_050", "der", 32, None),
    ],
)
def test_it_is_refused_before_anything_is_learnt(
    backbone: str, method: str, side: int, message: str | None
) -> None:
    raw = {"backbone": {"name": backbone}, "method": {"name": method}}
    settings = ExperimentSettings.model_validate(raw)
    if message is None:
        assert Model(settings, (3, side, side), (0.5,) * 3, (0.5,) * 3)
        return
    with pytest.raises(ValueError, match=message):
        Model(settings, (3, side, side), (0.5,) * 3, (0.5,) * 3)
