"""Images stored as WebP: what they hold, what they take, and what is refused."""

import io
import random
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from grace.base.errors import GraceError
from grace.base.randomness import generator
from grace.data.images import LabelledImages, TensorImages, concatenate
from grace.data.memory import (
    AsStored,
    ExemplarMemory,
    Room,
    decode_stored,
    encode,
    encoded,
    most_bytes,
)
from grace.settings.experiment import MemorySettings
from support.tiny_streams import pictures


def photographs(count: int, channels: int = 3, side: int = 48) -> Tensor:
    """Smooth pictures, uint8 (N, C, H, W), which compress as photographs do."""
    small = pictures(1, count, channels).float()
    large = torch.nn.functional.interpolate(small, side, mode="bicubic")
    return large.clamp(0, 255).to(torch.uint8)


def file_of(pixels: Tensor, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    picture = pixels.permute(1, 2, 0).numpy()
    Image.fromarray(picture.squeeze(2) if len(pixels) == 1 else picture).save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize("channels", [1, 3])
def test_webp_is_close_and_better_quality_is_closer(channels: int) -> None:
    pixels, none = photographs(4, channels), TensorImages(torch.empty(0, channels, 48, 48).byte())
    errors, sizes = [], []
    for quality in (30, 60, 95):
        kept = encoded(pixels, none, quality)
        found = kept.gather(torch.arange(4))
        errors.append(float((found.float() - pixels.float()).abs().mean()))
        sizes.append(kept.num_bytes)
        assert torch.equal(found, decode_stored(kept.files, kept.shape).pixels)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 3
    assert sizes == sorted(sizes)
    assert sizes[-1] < pixels.numel() / 2


def test_noise_is_stored_as_it_is() -> None:
    """No image takes more bytes than its pixels."""
    noise = torch.randint(0, 256, (3, 3, 8, 8), generator=generator(0, "noise")).to(torch.uint8)
    kept = encoded(noise, TensorImages(noise[:0]), 100)
    assert [len(file) for file in kept.files] == [192] * 3
    assert kept.num_bytes == 3 * 192
    labels = torch.zeros(3, dtype=torch.int64)
    joined = concatenate([LabelledImages(kept, labels)]).images
    assert isinstance(joined, TensorImages)
    assert joined.files is None
    assert torch.equal(kept.pixels, noise)


def test_a_stored_image_keeps_its_file() -> None:
    """Encoded again and again, it would lose a little more each time."""
    pixels = photographs(6)
    first = encoded(pixels, TensorImages(pixels[:0]), 40)
    order = torch.tensor([4, 0, 2])
    again = encoded(first.gather(order), first, 40)
    assert list(again.files or ()) == [first.files[i] for i in order.tolist()]
    assert again.subset(torch.tensor([1])).files == [first.files[0]]


def test_images_as_they_will_be_stored() -> None:
    pixels = photographs(6)
    places = torch.tensor([5, 1])
    seen = AsStored(TensorImages(pixels), 40)
    kept = encoded(pixels, TensorImages(pixels[:0]), 40)
    assert torch.equal(seen.gather(places), kept.gather(places))
    assert torch.equal(seen.subset(places).gather(torch.arange(2)), kept.gather(places))
    assert (len(seen), seen.shape, seen.num_bytes) == (6, (3, 48, 48), pixels.numel())
    assert seen.to(torch.device("cpu")) is seen
    assert seen.digest() == kept.digest()


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (lambda p: file_of(p, "WEBP")[:200], "damaged"),
        (lambda p: b"RIFF\x3a\0\0\0WEBPVP8 " + b"x" * 50, "damaged"),
        (lambda p: b"x", "damaged"),
        (lambda p: file_of(p[:, :47], "WEBP"), "48×47"),
        (lambda p: file_of(torch.cat([p, p[:1]]), "WEBP"), "RGBA image"),
        (lambda p: file_of(p, "JPEG", quality=30), "damaged or no image"),
        (lambda p: file_of(p, "GIF"), "damaged or no image"),
        (lambda p: file_of(p, "PNG"), "damaged or no image"),
        (lambda p: file_of(p, "WEBP") + b"\0" * 48**2 * 3, "longer than its pixels"),
    ],
)
def test_forged_files_are_refused(forge: object, message: str) -> None:
    pixels = photographs(2)
    assert callable(forge)
    with pytest.raises(GraceError, match=message):
        decode_stored([file_of(pixels[1], "WEBP"), forge(pixels[0])], (3, 48, 48))


def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    large = np.zeros((3000, 3000), np.uint8)
    out = io.BytesIO()
    Image.fromarray(large).save(out, "WEBP")
    data = out.getvalue()
    shape = (3, 200, 200)
    assert len(data) < 3 * 200**2

    def decode(*_: object) -> None:
        raise AssertionError("a decoder ran")

    monkeypatch.setattr("PIL.WebPImagePlugin.WebPImageFile.load", decode)
    with pytest.raises(GraceError, match="it is a RGB image of 3000×3000"):
        decode_stored([data], shape)


def memory(**given: object) -> ExemplarMemory:
    return ExemplarMemory(MemorySettings.model_validate(given))


@pytest.mark.parametrize(("quality", "room", "num_raw"), [(75, 16_000, 2), (100, 30_000, 4)])
def test_a_ceiling_is_filled_by_real_sizes(quality: int, room: int, num_raw: int) -> None:
    pixels = photographs(160)
    counts = {}
    for kind in ("raw", "webp"):
        kept = memory(format=kind, quality=quality, size=None, max_mb=1)
        kept.room = Room(room, most_bytes(kept.settings, (3, 48, 48)))
        quota = kept.quota(2, 1000)
        for index in range(2):
            own = TensorImages(pixels[80 * index : 80 * index + 80])
            kept.reduce(quota)
            kept.store(index, own, torch.arange(min(quota, 80)))
        kept.fit(1000)
        assert len(kept.of_class(0)) == len(kept.of_class(1)) == kept.largest_class
        counts[kind] = len(kept)
        if kind != "raw":
            needed = kept.num_bytes + 4 * len(kept) + 2 * 130
            one_more = sum(
                len(encode(pixels[80 * i + kept.largest_class], quality)) for i in range(2)
            )
            assert needed <= room - 1000 < needed + one_more + 8
    assert counts["raw"] == num_raw
    assert counts["webp"] > 1.5 * counts["raw"]


@pytest.mark.parametrize("lossless", [False, True])
def test_damaged_bytes_give_an_image_or_one_error(lossless: bool) -> None:
    """Files with bytes altered, cut out or doubled: no other error, and no other shape."""
    data = file_of(photographs(1)[0], "WEBP", lossless=lossless)
    draws = random.Random(lossless)  # noqa: S311
    refused = 0
    for _ in range(300):
        own = bytearray(data)
        for _ in range(draws.randint(1, 4)):
            place = draws.randrange(len(own))
            match draws.randrange(3):
                case 0:
                    own[place] = draws.randrange(256)
                case 1:
                    del own[place : place + draws.randint(1, 50)]
                case _:
                    own[place:place] = own[place : place + draws.randint(1, 50)]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = decode_stored([bytes(own)], (3, 48, 48))
            assert found.pixels.shape == (1, 3, 48, 48)
        except GraceError:
            refused += 1
    assert 30 < refused <= 300
