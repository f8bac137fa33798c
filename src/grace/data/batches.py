"""Batches of augmented images: permutation and draws once per epoch, then batched tensor work.

Shapes: N images, B of them in a batch, C channels, H×W pixels, K draws per image.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate

import torch
from torch import Tensor

from grace.data.augmentation import Augmentation
from grace.data.crops import CropDraws
from grace.data.images import CroppableImages, LabelledImages, TensorImages

_CPU = torch.device("cpu")

Share = Callable[[int], slice]
"""Which rows of a batch of so many images are wanted."""


def epoch_batches(
    data: LabelledImages,
    batch_size: int,
    order_generator: torch.Generator,
    augmentation: Augmentation,
    augment_generator: torch.Generator,
    *,
    device: torch.device = _CPU,
    channels_last: bool = False,
    rows: Share | None = None,
    views: int = 1,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one epoch of uniformly shuffled, augmented batches; the last one may be smaller.

    A last batch of a single image joins the one before it; ``batch_sizes`` tells their sizes.
    With V views every image is augmented V times, and its V rows follow each other.

    Args:
        data: N images; in memory on ``device`` for speed (``data.to(device)``), or in files.
        batch_size: images per batch, at least 1.
        order_generator: CPU generator of the permutation, drawn from once.
        augmentation: training transform, its constants on ``device`` for speed.
        augment_generator: CPU generator of the (N·V, K) draws, drawn from once: the n-th image of
            the epoch takes rows n·V to n·V + V - 1, however the epoch is cut into batches.
        device: where batches are made and given.
        channels_last: give images channels-last strides.
        rows: of each batch, the images wanted, where other processes see to the others; none wants
            all. Draws are made for all images: they are the same whoever takes which.
        views: augmented versions V of each image, at least 1. ``batch_size`` and ``rows`` count
            images, so a batch has V times as many rows.

    Yields:
        Images (B·V, C, H, W) float32 and class indices (B·V,) int64, both on ``device``.

    Reference:
        docs/protocols.md#augmentation.
    """
    assert views >= 1
    order = torch.randperm(len(data), generator=order_generator)
    drawn = torch.rand(len(data) * views, augmentation.num_draws, generator=augment_generator)
    sizes = batch_sizes(len(data), batch_size)
    if rows is not None:
        wanted, sizes = _wanted(sizes, rows)
        order, drawn = order[wanted], drawn.unflatten(0, (len(data), views))[wanted].flatten(0, 1)
    yield from _augmented(data, order, drawn, sizes, augmentation, device, channels_last, views)


def augmented_batches(
    data: LabelledImages,
    batch_size: int,
    augmentation: Augmentation,
    augment_generator: torch.Generator,
    *,
    device: torch.device = _CPU,
    channels_last: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the images augmented once, in dataset order; arguments as ``epoch_batches``."""
    order = torch.arange(len(data))
    drawn = torch.rand(len(data), augmentation.num_draws, generator=augment_generator)
    sizes = batch_sizes(len(data), batch_size)
    yield from _augmented(data, order, drawn, sizes, augmentation, device, channels_last)


def ordered_batches(
    data: LabelledImages,
    batch_size: int,
    transform: Callable[[Tensor], Tensor],
    *,
    device: torch.device = _CPU,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all images in dataset order through a fixed transform.

    Args:
        data: N images.
        batch_size: images per batch, at least 1; the last one may be smaller.
        transform: uint8 (B, C, H, W) → float32, e.g. ``augmentation.normalise``.
        device: where batches are made and given.

    Yields:
        Images (B, C, H, W) float32 and class indices (B,) int64, both on ``device``.
    """
    order = torch.arange(len(data))
    places = _places(data, order)

    def fetch(start: int, end: int) -> Tensor:
        return data.images.gather(places[start:end])

    def finish(pixels: Tensor, start: int, end: int) -> Tensor:
        return transform(pixels)

    yield from _batches(data, order, batch_sizes(len(data), batch_size), fetch, finish, device)


def batch_sizes(num_images: int, batch_size: int) -> list[int]:
    """Say how many images each batch has; a single image left over joins the batch before it.

    Batch norm cannot estimate a variance from one value, which is what one image leaves of a
    network whose last map is a single pixel.
    """
    assert batch_size >= 1
    full, left = divmod(num_images, batch_size)
    if left == 1 and full and batch_size > 1:
        return [*[batch_size] * (full - 1), batch_size + 1]
    return [*[batch_size] * full, *([left] if left else [])]


def _wanted(sizes: Sequence[int], rows: Share) -> tuple[Tensor, list[int]]:
    """Places in the epoch of every batch's wanted rows, and how many each batch has of them."""
    ends = accumulate(sizes)
    found = [range(end - size, end)[rows(size)] for size, end in zip(sizes, ends, strict=True)]
    places = torch.tensor([place for part in found for place in part], dtype=torch.int64)
    return places, [len(part) for part in found]


def _augmented(
    data: LabelledImages,
    order: Tensor,
    drawn: Tensor,
    sizes: Sequence[int],
    augmentation: Augmentation,
    device: torch.device,
    channels_last: bool,
    views: int = 1,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Augment the images at ``order`` (N,) by the numbers ``drawn`` (N·V, K), V views of each.

    ``sizes`` count images.
    """
    draws = drawn if augmentation.plans_on_cpu else drawn.to(device)
    images, places = data.images, _places(data, order)
    if augmentation.crops_at_random and isinstance(images, CroppableImages):
        crop_draws, source = drawn[:, : CropDraws.num_draws], images
        # Each view is a crop of its own.
        crop_places = _repeated(places, views)

        def fetch(start: int, end: int) -> Tensor:
            return source.gather_crops(crop_places[start:end], crop_draws[start:end])

        transform = augmentation.finish
    else:

        def fetch(start: int, end: int) -> Tensor:
            return _repeated(images.gather(places[start // views : end // views]), views)

        transform = augmentation.apply

    def finish(pixels: Tensor, start: int, end: int) -> Tensor:
        return transform(pixels, draws[start:end], channels_last)

    num_rows = [size * views for size in sizes]
    yield from _batches(data, _repeated(order, views), num_rows, fetch, finish, device)


def _repeated(values: Tensor, views: int) -> Tensor:
    """Repeat each entry so often in a row, without a copy where that is once."""
    return values if views == 1 else values.repeat_interleave(views, dim=0)


def _batches(
    data: LabelledImages,
    order: Tensor,
    sizes: Sequence[int],
    fetch: Callable[[int, int], Tensor],
    finish: Callable[[Tensor, int, int], Tensor],
    device: torch.device,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut an epoch into pieces, make each, and hand it out batch by batch."""
    labels = data.labels[order].to(device)
    in_memory = isinstance(data.images, TensorImages)
    ends = list(accumulate(sizes))
    at_once = _batches_at_once(data, sizes[0]) if in_memory and sizes else 1
    groups = [ends[first : first + at_once] for first in range(0, len(ends), at_once)]
    starts = [0, *(group[-1] for group in groups[:-1])]
    pieces = [(start, group[-1]) for start, group in zip(starts, groups, strict=False)]
    fetched = _fetched(fetch, pieces) if in_memory else _prefetched(fetch, pieces)
    for (start, end), group, pixels in zip(pieces, groups, fetched, strict=True):
        images = finish(_moved(pixels, device), start, end)
        first = start
        for last in group:
            yield images[first - start : last - start], labels[first:last]
            first = last


def _batches_at_once(data: LabelledImages, batch_size: int, values: int = 400_000) -> int:
    """Transform this many batches together: small ones cost more to dispatch than to compute.

    ``values`` pixels in float32 still fit the cache of a CPU core (1.6 MB).
    """
    channels, height, width = data.images.shape
    return max(1, values // max(1, batch_size * channels * height * width))


def _fetched(
    fetch: Callable[[int, int], Tensor], pieces: list[tuple[int, int]]
) -> Iterator[Tensor]:
    return (fetch(start, end) for start, end in pieces)


def _prefetched(
    fetch: Callable[[int, int], Tensor], pieces: list[tuple[int, int]], ahead: int = 3
) -> Iterator[Tensor]:
    """Read up to ``ahead`` pieces in the background while the caller computes."""
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[Future[Tensor]] = deque()
        try:
            for start, end in pieces:
                waiting.append(pool.submit(fetch, start, end))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            # An abandoned or failed epoch waits for at most the piece being read.
            for future in waiting:
                future.cancel()


def _places(data: LabelledImages, order: Tensor) -> Tensor:
    """Move the order to the pixels once, instead of one piece at a time."""
    images = data.images
    return order.to(images.pixels.device) if isinstance(images, TensorImages) else order


def _moved(pixels: Tensor, device: torch.device) -> Tensor:
    """Bring pixels to the device, through pinned memory where that lets the copy overlap."""
    if device.type == "cuda" and pixels.device.type == "cpu":
        return pixels.pin_memory().to(device, non_blocking=True)
    return pixels.to(device)
