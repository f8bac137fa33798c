"""Predict the classes of image files, a few hundred files at a time.

What answers is a learner, or a file that was exported from one: then torch is not imported.

Shapes: N images, C channels, H×W pixels, K classes, n held-out images.
"""

import math
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from grace.base.errors import GraceError
from grace.data.decoders import Pixels, read_pixels
from grace.data.decoding import MAX_PIXELS

if TYPE_CHECKING:
    from torch import Tensor

    from grace.settings.experiment import Fit

Numbers = np.ndarray[Any, np.dtype[np.float32]]


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
    is_unknown: bool | None = None
    """``True`` if it is unlike anything learnt; ``None``: not asked for, or not readable."""
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
    score_name: str
    """The score by which unknown images are recognised."""
    familiarities: "Sequence[float] | Tensor"
    """Scores of the held-out images (n,), which set the limit below which an image is unknown."""
    answer: Callable[[Pixels], tuple[Numbers, Numbers]]
    """Map pixels (N, H, W, C) to probabilities (N, K), and to how familiar images look (N,)."""

    def read(self, path: Path) -> Pixels:
        """Read an image file as ``read_file`` does."""
        return read_file(path, self.shape, self.fit, self.max_pixels)


@final
class FilePredictor:
    """Predicts the classes of image files with a learner's primary predictor.

    Args:
        answerer: of a learner that has learnt something. If its images are squares, files are
            resized as in training; otherwise files must have the right size.
        top: number of guesses for each image, at most the number of classes not forgotten.
        false_alarms: share of images of learnt classes that may be called unknown; ``None``:
            images are not checked for being unknown.
        batch_size: number of files that are read and predicted at once.
        num_threads: number of files that are decoded at once.

    Raises:
        GraceError: if nothing was learnt, ``top`` is below 1, or too few images are held out to
            promise so few false alarms.
    """

    def __init__(
        self,
        answerer: Answerer,
        *,
        top: int = 1,
        false_alarms: float | None = None,
        batch_size: int = 256,
        num_threads: int = 4,
    ) -> None:
        if not answerer.class_names:
            raise GraceError("nothing has been learnt yet", "teach this learner with 'grace learn'")
        if top < 1:
            raise GraceError(f"top {top} names no class", "ask for 1 or more")
        self.answerer = answerer
        """What answers."""
        self._live = [i for i in range(len(answerer.class_names)) if i not in answerer.forgotten]
        self.top = min(top, len(self._live))
        """Number of guesses for each image."""
        self.num_held_out = len(answerer.familiarities)
        """Number of held-out images that set the limit below which an image is unknown."""
        self.cutoff: float | None = None
        """Familiarity below which an image is unknown; ``None``: images are not checked."""
        if false_alarms is not None:
            self.cutoff = cutoff(answerer.familiarities, false_alarms)
        image_bytes = math.prod(answerer.shape)
        # Two batches are in memory: one is read while the other is predicted.
        self._batch_size = max(1, min(batch_size, 2**26 // image_bytes))
        self._num_threads = num_threads

    def predict(self, paths: Sequence[Path]) -> Iterator[list[Prediction]]:
        """Yield the predictions of files batch by batch, in order; unreadable files included."""
        batches = [
            paths[start : start + self._batch_size]
            for start in range(0, len(paths), self._batch_size)
        ]
        read = self.answerer.read
        pool = ThreadPoolExecutor(self._num_threads)
        # Decoders also warn about files that they can read.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.")
            try:
                coming = [pool.submit(read, path) for path in paths[: self._batch_size]]
                for batch, following in zip_longest(batches, batches[1:], fillvalue=()):
                    images = [_pixels_or_problem(one) for one in coming]
                    coming = [pool.submit(read, path) for path in following]
                    yield self._judged(batch, images)
            finally:
                pool.shutdown(cancel_futures=True)

    def _judged(self, paths: Sequence[Path], images: Sequence[Pixels | str]) -> list[Prediction]:
        readable = [image for image in images if not isinstance(image, str)]
        answers = iter(self._answers(readable) if readable else ())
        predictions = []
        for path, image in zip(paths, images, strict=True):
            if isinstance(image, str):
                predictions.append(Prediction(path=path, problem=image))
            else:
                guesses, familiarity = next(answers)
                is_unknown = None if self.cutoff is None else familiarity < self.cutoff
                predictions.append(
                    Prediction(
                        path=path, guesses=guesses, is_unknown=is_unknown, familiarity=familiarity
                    )
                )
        return predictions

    def _answers(self, images: Sequence[Pixels]) -> Iterator[tuple[list[Guess], float]]:
        """Yield for each image its guesses, and how familiar it looks."""
        probabilities, familiarities = self.answerer.answer(np.stack(images))
        live = probabilities[:, self._live]
        # Of equal probabilities the first index comes first, as with argmax.
        best = np.argsort(-live, axis=1, kind="stable")[:, : self.top]
        for row, places, familiarity in zip(live, best, familiarities.tolist(), strict=True):
            indices = [self._live[place] for place in places.tolist()]
            guesses = [
                Guess(self.answerer.class_names[index], index, probability)
                for index, probability in zip(indices, row[places].tolist(), strict=True)
            ]
            yield guesses, familiarity


def _pixels_or_problem(reading: Future[Pixels]) -> Pixels | str:
    """Wait for an image that is read; return its pixels, or why it cannot be read."""
    try:
        return reading.result()
    except GraceError as error:
        return str(error)


def read_file(
    path: Path, shape: tuple[int, int, int], fit: "Fit", max_pixels: int = MAX_PIXELS
) -> Pixels:
    """Read an image file in a learner's shape (C, H, W), as pixels (H, W, C).

    Args:
        path: the file.
        shape: the learner's; images that are no squares must have it.
        fit: how a picture becomes a square.
        max_pixels: a picture with more pixels is refused.

    Raises:
        GraceError: if it cannot be read, or has another size.
    """
    channels, side = channels_and_side(shape)
    pixels = read_pixels(path, channels, side, max_pixels=max_pixels, fit=fit)
    return of_size(pixels, shape, f"image '{path}'")


def channels_and_side(shape: tuple[int, int, int]) -> tuple[Literal[1, 3], int | None]:
    """Return the colours of a learner's images, and their side; ``None``: they are no squares."""
    channels, height, width = shape
    return 1 if channels == 1 else 3, height if height == width else None


def of_size(pixels: Pixels, shape: tuple[int, int, int], what: str) -> Pixels:
    """Return pixels (H, W, C); refuse those of another size than a learner's (C, H, W)."""
    if pixels.shape[:2] != shape[1:]:
        raise GraceError(
            f"{what} has {pixels.shape[1]}×{pixels.shape[0]} pixels, this learner takes "
            f"{shape[2]}×{shape[1]}",
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
