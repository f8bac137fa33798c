"""Names of augmentations and of the operations of a list. Torch-free."""

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import BeforeValidator

from grace.base.errors import GraceError
from grace.base.words import did_you_mean_one_of

AugmentationName = Literal["none", "shift", "cifar", "imagenet", "autoaugment", "randaugment"]
"""Names of whole augmentations."""


class Parameter(NamedTuple):
    """The number that an operation takes in a list: ``name: value``; a share is above 0."""

    meaning: str
    low: float
    high: float
    is_whole: bool = True


_BIN = Parameter("largest magnitude, of the bins 0 to 9", 1, 9)
_SHARE = Parameter("share of the images that are changed", 0, 1, is_whole=False)

OPERATIONS: Mapping[str, Parameter | None] = {
    "crop": Parameter("width of the black border in pixels", 1, 4096),
    "resized_crop": None,
    "flip": None,
    "brightness": Parameter("largest relative change", 0, 1, is_whole=False),
    "cutout": Parameter("side of the black square in pixels", 1, 4096),
    "autoaugment": None,
    "randaugment": Parameter("magnitude, of the bins 0 to 30", 0, 30),
    **dict.fromkeys(("shear_x", "shear_y", "translate_x", "translate_y", "rotate"), _BIN),
    **dict.fromkeys(("colour", "contrast", "sharpness", "posterize", "solarize"), _BIN),
    **dict.fromkeys(("autocontrast", "equalize", "invert"), _SHARE),
}
"""Operations of a list, in the order of the documentation, and the number that each may take."""


def split_operation(text: str) -> tuple[str, float | None]:
    """Split an operation of a list into its name and its number, e.g. ``cutout:8``.

    Args:
        text: ``name`` or ``name:number``.

    Returns:
        The name, and the number; ``None`` without one.

    Raises:
        GraceError: if there is no such operation, or its number is outside its range.
    """
    name, colon, written = (part.strip() for part in text.partition(":"))
    if name not in OPERATIONS:
        hint = did_you_mean_one_of(name, OPERATIONS, most=len(OPERATIONS))
        raise GraceError(f"there is no operation '{name}' in a list{hint}")
    parameter = OPERATIONS[name]
    if not colon:
        return name, None
    if parameter is None:
        raise GraceError(f"'{text}': {name} takes no number")
    meaning, low, high, is_whole = parameter
    try:
        value = float(written)
    except ValueError:
        value = -1.0
    if not low <= value <= high or not (value.is_integer() if is_whole else value > 0):
        kind = f"a whole number from {low:g}" if is_whole else f"a number above {low:g}"
        raise GraceError(f"'{text}': {name} takes {kind} to {high:g} ({meaning})")
    return name, value


def _checked(value: object) -> str | tuple[str, ...]:
    """Return a name unchanged, or a list of operations in one spelling."""
    names = get_args(AugmentationName)
    if isinstance(value, str):
        if value not in names:
            hint = did_you_mean_one_of(value, names)
            raise GraceError(f"'{value}' is no augmentation{hint}, or a list of operations")
        return value
    if not isinstance(value, list | tuple) or not 0 < len(value) <= 100:
        raise GraceError(f"{value!r} should be a name or a list of operations, as [crop, flip]")
    operations = tuple(map(_written, value))
    if "resized_crop" in operations[1:]:
        raise GraceError("resized_crop must be the first operation of the list, and the only one")
    return operations


def _written(entry: object) -> str:
    """Write one entry of a list as ``name`` or ``name:number``."""
    if isinstance(entry, Mapping) and len(entry) == 1:
        # YAML reads [crop, cutout: 8] with a mapping as its second entry.
        ((key, number),) = entry.items()
        entry = f"{key}:{number}"
    if not isinstance(entry, str):
        raise GraceError(f"{entry!r} should be an operation, such as flip or cutout:8")
    name, value = split_operation(entry)
    if value is None:
        return name
    return f"{name}:{int(value) if value.is_integer() else value}"


AugmentationSetting = Annotated[AugmentationName | tuple[str, ...], BeforeValidator(_checked)]
"""A name, or operations as :func:`split_operation` reads them."""


def crops_at_random(setting: str | tuple[str, ...]) -> bool:
    """Return True if a random resized crop comes first; it is done while decoding files."""
    return setting == "imagenet" or (isinstance(setting, tuple) and setting[0] == "resized_crop")
