"""Names and lists of operations as a setting."""

import pytest
import torch
from torch import Tensor

from grace.data.augmentation import build_augmentation
from grace.settings.augmentation import AugmentationSetting, crops_at_random, split_operation
from grace.settings.load import ConfigError, load_experiment


def given(text: str) -> object:
    return load_experiment("digits", [f"data.augmentation={text}"]).data.augmentation


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("imagenet", "imagenet"),
        ("[crop, flip, cutout]", ("crop", "flip", "cutout")),
        ("[crop:2, brightness: 0.5, cutout: 8.0]", ("crop:2", "brightness:0.5", "cutout:8")),
        ("[crop, autoaugment, cutout]", ("crop", "autoaugment", "cutout")),
    ],
)
def test_lists_are_read_from_the_command_line(text: str, expected: object) -> None:
    assert given(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cifr", "'cifr' is no augmentation; did you mean 'cifar'?"),
        ("crop", "'crop' is no augmentation (known: none, shift,"),
        ("[rotat]", "there is no operation 'rotat' in a list; did you mean 'rotate'?"),
        ("[]", "should be a name or a list of operations"),
        ("[3]", "3 should be an operation"),
        ("[{a: 1, b: 2}]", "should be an operation"),
        ("[flip:2]", "flip takes no number"),
        ("[cutout:0]", "takes a whole number from 1 to 4096 (side of the black square in pixels)"),
        ("[crop:x]", "takes a whole number from 1"),
        ("[rotate:10]", "from 1 to 9 (largest magnitude, of the bins 0 to 9)"),
        ("[randaugment:31]", "from 0 to 30"),
        ("[brightness:0]", "takes a number above 0 to 1"),
        ("[flip, resized_crop]", "resized_crop must be the first operation"),
    ],
)
def test_what_is_wrong_is_named_with_the_remedy(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        given(text)
    assert str(caught.value).startswith("data.augmentation: ")
    assert words in str(caught.value)
    assert len(caught.value.problems) == 1


def changed(given: AugmentationSetting) -> Tensor:
    """Noise changed by operations, always with the same draws."""
    source = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 3, 40, 40), dtype=torch.uint8, generator=source)
    augmentation = build_augmentation(given, (0.5,) * 3, (0.25,) * 3, 40)
    return augmentation.apply(images, torch.rand(40, augmentation.num_draws, generator=source))


@pytest.mark.parametrize(
    "text",
    ["crop:5", f"brightness:{63 / 255}", "cutout:20", "randaugment:9", "rotate:9", "invert:0.5"],
)
def test_operations_are_made_at_the_published_strength_or_the_given_one(text: str) -> None:
    name, number = split_operation(text)
    assert number
    assert torch.equal(changed((text,)), changed((name,)))
    other = number / 2 if number < 1 else int(number / 2)
    assert not torch.equal(changed((f"{name}:{other}",)), changed((name,)))


def test_named_lists_are_their_operations() -> None:
    for name, texts in {
        "none": (),
        "shift": ("crop:1",),
        "cifar": ("crop", "flip", "brightness"),
        "imagenet": ("resized_crop", "flip"),
        "autoaugment": ("crop", "flip", "brightness", "autoaugment", "cutout"),
        "randaugment": ("crop", "flip", "randaugment"),
    }.items():
        assert torch.equal(changed(name), changed(texts))  # type: ignore[arg-type]


def test_a_resized_crop_is_known_in_a_list_as_by_name() -> None:
    tried: list[AugmentationSetting] = ["imagenet", ("resized_crop", "flip"), ("flip",), "cifar"]
    assert [crops_at_random(setting) for setting in tried] == [True, True, False, False]
