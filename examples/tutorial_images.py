"""Unpack ten classes of a Tiny-ImageNet archive into the four folders of the tutorial.

``python examples/tutorial_images.py tiny-imagenet-20-64px.tar products`` writes
``products/week1/train/basketball/…``, ``products/week1/test/basketball/…`` and so on.
"""

import argparse
import tarfile
from collections import Counter
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


def main() -> None:
    """Write at most so many images of each class, in the order of the archive."""
    parser = argparse.ArgumentParser(description="Make the tutorial's folders of images.")
    parser.add_argument("archive", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--train", type=int, default=300, help="training images of each class")
    parser.add_argument("--test", type=int, default=30, help="test images of each class")
    arguments = parser.parse_args()
    places = {key: (week, name) for week, names in WEEKS.items() for key, name in names.items()}
    limits = {"train": arguments.train, "test": arguments.test}
    written: Counter[tuple[str, str]] = Counter()
    with tarfile.open(arguments.archive) as archive:
        for member in archive:
            # Only names are taken from the archive, never paths: nothing can lead outside.
            part, _, rest = member.name.partition("/")
            key, image = PurePosixPath(rest).parent.name, PurePosixPath(rest).name
            content = archive.extractfile(member)
            if content is None or key not in places or part not in limits or image == "..":
                continue
            if written[part, key] == limits[part]:
                continue
            written[part, key] += 1
            week, name = places[key]
            folder = arguments.out / week / part / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / image).write_bytes(content.read())
    print(f"{sum(written.values())} images in {arguments.out}/week1 … week4")


if __name__ == "__main__":
    main()
