"""A learner that cannot work says so when it is made."""

import pytest

from grace.learner.model import Model
from grace.settings.experiment import ExperimentSettings


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        ("resnet99", "unknown backbone 'resnet99'; did you mean"),
        ("timm/vit_tiny_patch16_224", r"cannot take images of shape \(3, 8, 8\).*data.image_size"),
    ],
)
def test_a_backbone_that_cannot_work_is_refused_before_anything_is_learnt(
    backbone: str, message: str
) -> None:
    if backbone.startswith("timm/"):
        pytest.importorskip("timm", reason="the timm extra is not installed")
    settings = ExperimentSettings.model_validate({"backbone": {"name": backbone}})
    with pytest.raises(ValueError, match=message):
        Model(settings, (3, 8, 8), (0.5,) * 3, (0.5,) * 3)


def test_a_backbone_that_cannot_share_a_trunk_is_refused_where_one_is_shared() -> None:
    pytest.importorskip("timm", reason="the timm extra is not installed")
    backbone = {"name": "timm/mobilenetv3_small_050"}
    for method in ("der", "memo"):
        settings = ExperimentSettings.model_validate(
            {"backbone": backbone, "method": {"name": method}}
        )
        if method == "memo":
            with pytest.raises(ValueError, match="cannot be cut before its last stage"):
                Model(settings, (3, 32, 32), (0.5,) * 3, (0.5,) * 3)
        else:
            Model(settings, (3, 32, 32), (0.5,) * 3, (0.5,) * 3)
