"""Names of augmentations and of the operations of a list. Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, final, get_args

from pydantic import BeforeValidator

from grace.base.errors import GraceError
from grace.base.words import did_you_mean

AugmentationName = Literal["none", "shift", "cifar", "imagenet", "autoaugment", "randaugment"]
"""Names of whole augmentations."""


@final
@dataclass(frozen=True)
class Parameter:
    """The number that an operation takes in a list: ``name: value``."""

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
        if name in get_args(AugmentationName):
            raise GraceError(f"'{name}' names a whole list, so it cannot stand in one")
        known = ", ".join(OPERATIONS)
        hint = did_you_mean(name, OPERATIONS)
        raise GraceError(f"there is no operation '{name}'{hint} (known: {known})")
    if not colon:
        return name, None
    parameter = OPERATIONS[name]
    if parameter is None:
        raise GraceError(f"'{text}': {name} takes no number")
    kind = "a whole number" if parameter.is_whole else "a number"
    above = "from" if parameter.is_whole else "above"
    wanted = f"{kind} {above} {parameter.low:g} to {parameter.high:g} ({parameter.meaning})"
    try:
        value = float(written)
    except ValueError:
        raise GraceError(f"'{text}': {name} takes {wanted}") from None
    fits = parameter.low <= value <= parameter.high and (parameter.is_whole or value > 0)
    if not fits or (parameter.is_whole and not value.is_integer()):
        raise GraceError(f"'{text}': {name} takes {wanted}")
    return name, value


def _checked(value: object) -> str | tuple[str, ...]:
    """Return a name unchanged, or a list of operations in one spelling."""
    names = get_args(AugmentationName)
    if isinstance(value, str):
        if value in OPERATIONS and value not in names:
            raise GraceError(f"'{value}' is one operation", f"write it as a list, [{value}]")
        if value not in names:
            hint = did_you_mean(value, names)
            raise GraceError(
                f"'{value}' is no augmentation{hint} (known: {', '.join(names)}; "
                f"or a list of {', '.join(OPERATIONS)})"
            )
        return value
    if not isinstance(value, list | tuple) or not value:
        raise GraceError(
            f"{value!r} should be a name or a list of operations, such as [crop, flip]"
        )
    if len(value) > 100:
        raise GraceError(f"{len(value)} operations are too many: 100 at most")
    operations = tuple(_written(entry) for entry in value)
    if "resized_crop" in operations[1:]:
        raise GraceError("resized_crop must be the first operation of the list, and the only one")
    return operations


def _written(entry: object) -> str:
    """Write one entry of a list as ``name`` or ``name:number``."""
    # YAML reads [crop, cutout: 8] with a mapping as its second entry.
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((name, number),) = entry.items()
        if isinstance(number, bool):
            raise GraceError(f"{entry!r} should be an operation, such as flip or cutout:8")
        entry = f"{name}:{number}"
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
