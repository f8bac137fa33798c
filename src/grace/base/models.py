"""Read small JSON files of ours, which a stranger may have altered, as pydantic models."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from grace.base import strict_json
from grace.base.reading import read_small
from grace.base.refusals import DamagedError
from grace.base.validation import first_problem

ModelT = TypeVar("ModelT", bound=BaseModel)


def read_model(path: Path, model: type[ModelT], max_bytes: int) -> ModelT:
    """Read a JSON file as a model.

    Args:
        path: a regular file, no link.
        model: the model that it must hold.
        max_bytes: the largest size in bytes that is read.

    Raises:
        DamagedError: if it is missing, a link, larger, or holds something else.
    """
    what = f"'{path}'"
    return checked(model, strict_json.parse(read_small(path, what, max_bytes), what), what)


def checked(model: type[ModelT], raw: object, what: str) -> ModelT:
    """Validate the content of a file.

    Args:
        model: the model that it must hold.
        raw: its content as plain values.
        what: name of the file in messages.

    Raises:
        DamagedError: if it is not such a model.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise DamagedError(f"{what} is damaged: {first_problem(error)}") from error
