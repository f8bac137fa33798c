"""Batches of augmented images; all random numbers of an epoch are drawn at its start.

Shapes: N images, B of them in a batch, C channels, H×W pixels, K draws per image.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from grace.data.augmentation import Augmentation
from grace.data.image_changes import NUM_CROP_DRAWS, on_device
from grace.data.images import Images, LabelledImages, TensorImages

_CPU = torch.device("cpu")

WantedRows = Callable[[int], slice]
"""Maps the number of images of a batch to the rows that are wanted."""


def epoch_batches(
    data: LabelledImages,
    batch_size: int,
    order_generator: torch.Generator | None,
    augmentation: Augmentation,
    augment_generator: torch.Generator | None,
    *,
    device: torch.device = _CPU,
    channels_last: bool = False,
    rows: WantedRows | None = None,
    views: int = 1,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one epoch of augmented batches, uniformly shuffled; the last one may be smaller.

    A last batch of a single image joins the one before it; see ``batch_sizes``. With V views every
    image is augmented V times, and its V rows follow each other.

    Args:
        data: N images; in memory on ``device`` for speed (``data.to(device)``), or in files.
        batch_size: images per batch, at least 1.
        order_generator: CPU generator of the permutation, drawn from once; ``None``: dataset order.
        augmentation: training transform, its constants on ``device`` for speed.
        augment_generator: CPU generator of the (N·V, K) draws, drawn from once: the n-th image of
            the epoch takes rows n·V to n·V + V - 1, however the epoch is cut into batches. ``None``
            for a transform without operations.
        device: where batches are made and given.
        channels_last: give images channels-last strides.
        rows: the images of each batch that this process computes; ``None``: all. Draws are made for
            all images, so that they do not depend on the rows.
        views: augmented versions V of each image, at least 1. ``batch_size`` and ``rows`` count
            images, so a batch has V times as many rows.

    Yields:
        Images (B·V, C, H, W) float32 and class indices (B·V,) int64, both on ``device``.

    Reference:
        docs/protocols.md#augmentation.
    """
    assert views >= 1
    order = torch.arange(len(data))
    if order_generator is not None:
        order = torch.randperm(len(data), generator=order_generator)
    drawn = torch.rand(len(data) * views, augmentation.num_draws, generator=augment_generator)
    sizes = batch_sizes(len(data), batch_size)
    if rows is not None:
        wanted, sizes = _wanted(sizes, rows)
        order, drawn = order[wanted], drawn.unflatten(0, (len(data), views))[wanted].flatten(0, 1)
    crop_draws = None
    if augmentation.crops_at_random and data.images.has_files:
        # They are cropped while they are decoded. The rest follows.
        crop_draws, drawn = drawn[:, :NUM_CROP_DRAWS], drawn[:, NUM_CROP_DRAWS:]
        augmentation = replace(augmentation, operations=augmentation.operations[1:])
    draws = drawn if augmentation.plans_on_cpu else drawn.to(device)

    def finish(pixels: Tensor, start: int, end: int) -> Tensor:
        return augmentation.apply(pixels, draws[start:end], channels_last)

    fetch, num_rows = _fetch(data.images, order, crop_draws, views), [n * views for n in sizes]
    return _batches(data, _repeated(order, views), num_rows, fetch, finish, device)


def row_batches(
    rows: Mapping[str, Tensor],
    labels: Tensor,
    batch_size: int,
    order_generator: torch.Generator,
    *,
    device: torch.device = _CPU,
    wanted: WantedRows | None = None,
) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Yield one epoch of shuffled rows that are known already, in the order of ``epoch_batches``.

    Args:
        rows: by name, each (N, …).
        labels: class indices (N,) int64.
        batch_size: rows per batch, at least 1.
        order_generator: CPU generator of the permutation, drawn from once.
        device: where batches are given.
        wanted: the rows of each batch that this process computes; ``None``: all.

    Yields:
        Rows (B, …) by name and their labels (B,), on ``device``.
    """
    order = torch.randperm(len(labels), generator=order_generator)
    sizes = batch_sizes(len(labels), batch_size)
    if wanted is not None:
        places, sizes = _wanted(sizes, wanted)
        order = order[places]
    rows = {name: values.to(device) for name, values in rows.items()}
    labels = labels.to(device)
    for chosen in order.to(device).split(sizes):
        yield {name: values[chosen] for name, values in rows.items()}, labels[chosen]


def batch_sizes(num_images: int, batch_size: int) -> list[int]:
    """Return the number of images of each batch; a single last image joins the batch before it.

    Batch norm cannot estimate a variance from one value, which is all that one image gives if a
    network's last map is a single pixel.
    """
    assert batch_size >= 1
    full, left = divmod(num_images, batch_size)
    if left == 1 and full and batch_size > 1:
        return [*[batch_size] * (full - 1), batch_size + 1]
    return [*[batch_size] * full, *([left] if left else [])]


def _wanted(sizes: Sequence[int], rows: WantedRows) -> tuple[Tensor, list[int]]:
    """Return the wanted rows' places in the epoch, and their number in each batch."""
    ends = accumulate(sizes)
    found = [range(end - size, end)[rows(size)] for size, end in zip(sizes, ends, strict=True)]
    places = torch.tensor([place for part in found for place in part], dtype=torch.int64)
    return places, [len(part) for part in found]


def _fetch(
    images: Images, order: Tensor, crop_draws: Tensor | None, views: int
) -> Callable[[int, int], Tensor]:
    """Return the function that reads the pixels of the rows from a start to an end."""
    if isinstance(images, TensorImages):
        # To the pixels' device once, not piece by piece.
        order = order.to(images.pixels.device)
    if crop_draws is None:
        return lambda a, b: _repeated(images.gather(order[a // views : b // views]), views)
    # Each view is a crop of its own.
    places = _repeated(order, views)
    return lambda a, b: images.gather_crops(places[a:b], crop_draws[a:b])


def _repeated(values: Tensor, views: int) -> Tensor:
    """Repeat each entry ``views`` times in a row; no copy for one view."""
    return values if views == 1 else values.repeat_interleave(views, dim=0)


def _batches(
    data: LabelledImages,
    order: Tensor,
    sizes: Sequence[int],
    fetch: Callable[[int, int], Tensor],
    finish: Callable[[Tensor, int, int], Tensor],
    device: torch.device,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Compute an epoch piece by piece, a few batches at once, and yield it batch by batch."""
    labels = data.labels[order].to(device)
    in_memory = isinstance(data.images, TensorImages)
    at_once = _batches_at_once(data, sizes[0]) if in_memory and sizes else 1
    groups = [sizes[first : first + at_once] for first in range(0, len(sizes), at_once)]
    ends = list(accumulate(map(sum, groups)))
    starts = [0, *ends[:-1]]
    fetched = (map if in_memory else _prefetched)(fetch, starts, ends)
    for start, end, group, pixels in zip(starts, ends, groups, fetched, strict=False):
        images = finish(on_device(pixels, device), start, end)
        yield from zip(images.split(group), labels[start:end].split(group), strict=True)


def _batches_at_once(data: LabelledImages, batch_size: int, values: int = 400_000) -> int:
    """Return how many batches to transform together: small ones cost more to start than to compute.

    ``values`` pixels in float32 still fit the cache of a CPU core (1.6 MB).
    """
    return max(1, values // max(1, batch_size * math.prod(data.images.shape)))


def _prefetched(
    fetch: Callable[[int, int], Tensor], starts: Sequence[int], ends: Sequence[int]
) -> Iterator[Tensor]:
    """Read up to three pieces in the background while the caller computes."""
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[Future[Tensor]] = deque()
        try:
            for start, end in zip(starts, ends, strict=True):
                waiting.append(pool.submit(fetch, start, end))
                if len(waiting) > 3:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            # An abandoned or failed epoch waits for at most the piece being read.
            for future in waiting:
                future.cancel()
