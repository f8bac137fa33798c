"""Unpack ten classes of a Tiny-ImageNet archive into the folders of the tutorial.

``python examples/tutorial_images.py tiny-imagenet-20-64px.tar products`` writes
``products/week1/basketball/…`` to ``products/week4/…``, a delivery with two folders swapped
(``products/swapped``), all deliveries together (``products/all``), and test images that no
delivery has (``products/test``).
"""

import argparse
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

WEEKS = {
    "week1": {
        "n02802426_basketball": "basketball",
        "n02917067_bullet_train": "bullet train",
        "n07614500_ice_cream": "ice cream",
        "n04275548_spider_web": "spider web",
    },
    "week2": {"n02437312_arabian_camel": "camel", "n03662601_lifeboat": "lifeboat"},
    "week3": {"n07753592_banana": "banana", "n02190166_fly": "fly"},
    "week4": {
        "n04486054_triumphal_arch": "triumphal arch",
        "n02094433_yorkshire_terrier": "yorkshire terrier",
    },
}
SWAPPED = {"basketball": "ice cream", "ice cream": "basketball"}
"""Classes of which week 3 brings more images, and the folders where a mistake puts them."""


def folders(week: str, name: str, is_more: bool) -> Iterator[str]:
    """Yield the folders to which a training image of a class belongs."""
    yield f"all/{name}"
    yield f"{'week3' if is_more else week}/{name}"
    if is_more:
        yield f"swapped/{SWAPPED[name]}"
    elif week == "week3":
        yield f"swapped/{name}"


def main() -> None:
    """Write at most so many images of each class, in the order of the archive."""
    parser = argparse.ArgumentParser(description="Make the tutorial's folders of images.")
    parser.add_argument("archive", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--train", type=int, default=300, help="training images of each class")
    parser.add_argument("--more", type=int, default=150, help="later images of two of the classes")
    parser.add_argument("--test", type=int, default=50, help="test images of each class")
    arguments = parser.parse_args()
    places = {key: (week, name) for week, names in WEEKS.items() for key, name in names.items()}
    read: Counter[tuple[str, str]] = Counter()
    with tarfile.open(arguments.archive) as archive:
        for member in archive:
            # Only names are taken from the archive, never paths: nothing can lead outside.
            part, _, rest = member.name.partition("/")
            key, image = PurePosixPath(rest).parent.name, PurePosixPath(rest).name
            content = archive.extractfile(member)
            if content is None or key not in places or image == "..":
                continue
            week, name = places[key]
            number = read[part, key]
            read[part, key] += 1
            is_more = part == "train" and number >= arguments.train
            if part == "test":
                found = [f"test/{name}"] if number < arguments.test else []
            elif part == "train":
                is_wanted = number < arguments.train + arguments.more * (name in SWAPPED)
                found = list(folders(week, name, is_more)) if is_wanted else []
            else:
                continue
            data = content.read()
            for folder in found:
                (arguments.out / folder).mkdir(parents=True, exist_ok=True)
                (arguments.out / folder / image).write_bytes(data)
    print(f"images in {arguments.out}: week1 … week4, swapped, all, test")


if __name__ == "__main__":
    main()
