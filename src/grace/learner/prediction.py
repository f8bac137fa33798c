"""Predict the classes of image files, a few hundred files at a time.

What answers is a learner, or a file that was exported from one: then torch is not imported.

Shapes: N images, C channels, H×W pixels, K classes, n held-out images.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np
from PIL import Image

from grace.base.errors import GraceError
from grace.data.decoders import Pixels, pixels_of, read_pixels
from grace.data.decoding import MAX_PIXELS, Reading

if TYPE_CHECKING:
    from torch import Tensor

    from grace.settings.experiment import Fit

Numbers = np.ndarray[Any, np.dtype[np.float32]]
BATCH = 256
"""Most files that are read and predicted at once."""
BATCH_BYTES = 2**26
"""Most bytes of their pixels."""


@final
@dataclass(frozen=True)
class Guess:
    """A class that an image may show, with its probability."""

    class_name: str
    index: int
    probability: float


@final
@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction for one image file."""

    path: Path
    guesses: Sequence[Guess] = ()
    """The most probable class first; empty if the file could not be read."""
    familiarity: float | None = None
    """How much it looks like something learnt: higher is more; ``None`` if not readable."""
    problem: str | None = None
    """Why it could not be read."""


@final
@dataclass(frozen=True, kw_only=True)
class Answerer:
    """What answers for a learner: the learner itself, or a file that was exported from it."""

    class_names: Sequence[str]
    """Names of all classes, forgotten ones included."""
    forgotten: Collection[int]
    """Indices of the forgotten classes."""
    shape: tuple[int, int, int]
    """(C, H, W) of every image."""
    fit: "Fit"
    """How a picture becomes a square."""
    max_pixels: int = MAX_PIXELS
    """A picture with more pixels is refused."""
    familiarities: "Sequence[float] | Tensor"
    """Scores of the held-out images (n,), which set the limit below which an image is unknown."""
    answer: Callable[[Pixels], tuple[Numbers, Numbers]]
    """Map pixels (N, H, W, C) to probabilities (N, K), and to how familiar images look (N,)."""


def predict_files(
    answerer: Answerer, paths: Sequence[Path], top: int = 1, batch: int = BATCH
) -> Iterator[Prediction]:
    """Yield the prediction of each file, in their order; files that cannot be read included.

    Args:
        answerer: of a learner that has learnt something. If its images are squares, files are
            resized as in training; otherwise files must have the right size.
        paths: the files.
        top: number of guesses for each image; there are no more than classes not forgotten.
        batch: number of files that are read and predicted at once.
    """
    names, forgotten = answerer.class_names, answerer.forgotten
    live = np.array([index for index in range(len(names)) if index not in forgotten])
    batch = max(1, min(batch, BATCH_BYTES // math.prod(answerer.shape)))

    def read(path: Path) -> Pixels | str:
        try:
            return in_shape(path, answerer.shape, answerer.fit, answerer.max_pixels)
        except GraceError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        for start in range(0, len(paths), batch):
            images = list(pool.map(read, paths[start : start + batch]))
            found: Iterator[tuple[Numbers, float]] = iter(())
            if readable := [image for image in images if not isinstance(image, str)]:
                probabilities, familiarities = answerer.answer(np.stack(readable))
                found = zip(probabilities, familiarities.tolist(), strict=True)
            for path, image in zip(paths[start : start + batch], images, strict=True):
                if isinstance(image, str):
                    yield Prediction(path=path, problem=image)
                    continue
                shares, familiarity = next(found)
                # Of equal probabilities the first index comes first, as with argmax.
                best = live[np.argsort(-shares[live], kind="stable")[:top]].tolist()
                guesses = [Guess(names[index], index, float(shares[index])) for index in best]
                yield Prediction(path=path, guesses=guesses, familiarity=familiarity)


def in_shape(
    image: Path | Image.Image, shape: tuple[int, int, int], fit: "Fit", max_pixels: int = MAX_PIXELS
) -> Pixels:
    """Return an image in a learner's shape (C, H, W), as pixels (H, W, C).

    Args:
        image: a file, or an image of a Python program.
        shape: the learner's; images that are no squares must have it.
        fit: how a picture becomes a square.
        max_pixels: a file of a picture with more pixels is refused.

    Raises:
        GraceError: if it cannot be read, or has another size.
    """
    num_channels, height, width = shape
    channels: Literal[1, 3] = 1 if num_channels == 1 else 3
    side = height if height == width else None
    reading = Reading(channels, side, fit, max_pixels)
    pixels = read_pixels(image, reading) if isinstance(image, Path) else pixels_of(image, reading)
    if pixels.shape[:2] != (height, width):
        what = f"image '{image}'" if isinstance(image, Path) else "an image"
        raise GraceError(
            f"{what} has {pixels.shape[1]}×{pixels.shape[0]} pixels, this learner takes "
            f"{width}×{height}",
            "resize it",
        )
    return pixels


def cutoff(held_out: "Sequence[float] | Tensor", false_alarms: float) -> float:
    """Return the familiarity below which an image counts as unknown.

    The k-th smallest of n held-out scores with ``k = floor(a·(n + 1))``: a fresh image of a learnt
    class, drawn like the held-out ones, falls below it with probability at most ``k/(n + 1) ≤ a``
    (split conformal prediction).

    Args:
        held_out: (n,) familiarities of held-out images of learnt classes.
        false_alarms: share a of images of learnt classes that may be called unknown, in (0, 1);
            a larger share recognises more unknown images.

    Raises:
        GraceError: if there are too few held-out images for so small a share.
    """
    if not 0 < false_alarms < 1:
        raise GraceError(f"{100 * false_alarms:g} % false alarms must lie between 0 and 100 %")
    # 1e-9 against rounding, so that 0.05 · 20 is 1 and a third of 3 too.
    rank = int(false_alarms * (len(held_out) + 1) + 1e-9)
    if rank == 0:
        enough = math.ceil((1 - 1e-9) / max(false_alarms, 1e-12)) - 1
        raise GraceError(
            f"{100 * false_alarms:g} % false alarms need at least {enough} held-out images, "
            f"this learner has {len(held_out)}",
            "allow more false alarms or hold out more images",
        )
    return float(np.sort(np.asarray(held_out, np.float32))[rank - 1])
