"""``grace evaluate``: accuracies for people and programs, exit codes for CI, a page of mistakes."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import grace
from grace.cli.evaluate import write_page
from grace.learner.evaluate import Evaluated, ImageResult
from grace.learner.learner import Learner
from support.commands import call
from support.learn_calls import made as made
from support.picture_folders import folder, picture

pytestmark = pytest.mark.usefixtures("tiny_backbones")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return folder(tmp_path / "images", "ant", "bee", count=6, seed=7)


def test_it_counts_what_predict_says(made: tuple[Path, Path, Any], images: Path) -> None:
    told = json.loads(call("evaluate", made[1], images, "--json").stdout)
    rows = call("predict", made[1], images, "--json").stdout.splitlines()
    said = [json.loads(row) for row in rows]
    right = [Path(row["image"]).parent.name == row["class"] for row in said]
    assert (told["num_images"], told["num_right"]) == (12, sum(right))
    assert told["accuracy"] == sum(right) / 12
    low, high = told["accuracy_interval"]
    assert low < told["accuracy"] < high or told["accuracy"] in (0, 1)
    assert sum(own["num_right"] for own in told["classes"]) == sum(right)
    assert sum(pair["num_images"] for pair in told["confusions"]) == 12 - sum(right)
    found = grace.evaluate(made[1], images)
    assert [own.probability for own in found.results] == pytest.approx(
        [row["probability"] for row in said]
    )


def test_the_page_for_people(made: tuple[Path, Path, Any], images: Path) -> None:
    lines = call("evaluate", made[1], images).stdout.splitlines()
    assert lines[0] == f"version 1 of '{made[1]}' on '{images}'"
    text = "\n".join(lines)
    assert re.search(r"^accuracy +\d+\.\d %$", text, re.MULTILINE)
    assert re.search(r"^accuracy interval +\d+ – \d+ %$", text, re.MULTILINE)
    assert re.search(r"^ant +6 +\d +\d+\.\d %", text, re.MULTILINE)


def test_the_exit_code_for_ci(made: tuple[Path, Path, Any], images: Path) -> None:
    assert call("evaluate", made[1], images, "--min-accuracy", 0).exit_code == 0
    # Ants under the name of bees are never all right.
    (images / "bee" / "ant.png").write_bytes((images / "ant" / "000.png").read_bytes())
    right = json.loads(call("evaluate", made[1], images, "--json").stdout)["accuracy"]
    assert right < 1
    low = call("evaluate", made[1], images, "--min-accuracy", 100)
    assert low.exit_code == 3
    assert re.search(r"^reached +no$", low.stdout, re.MULTILINE)
    assert call("evaluate", made[1], images, "--min-accuracy", 101).exit_code == 2
    share = call("evaluate", made[1], images, "--min-accuracy", 0.8)
    assert "--min-accuracy 0.8 is 0.8 %: for a share of 0.8 use --min-accuracy 80" in share.stderr


def test_all_verbs_say_the_same_of_images_in_avif(
    made: tuple[Path, Path, Any], images: Path, tmp_path: Path
) -> None:
    for name in ("a.avif", "b.HEIC"):
        (images / "ant" / name).write_bytes(b"")
    shutil.copytree(made[1], tmp_path / "model")
    said = [
        call("evaluate", made[1], images).stderr,
        call("predict", made[1], images).stderr,
        call("doctor", images, "--model", made[1]).stdout,
        call("learn", images, "--model", tmp_path / "model", "--skip-duplicates").stderr,
    ]
    assert ["AVIF or HEIC: convert it" in text for text in said] == [True] * 4, said


def test_what_is_left_out_is_said(made: tuple[Path, Path, Any], images: Path) -> None:
    shutil.copytree(images / "bee", images / "newt")
    (images / "ant" / "broken.png").write_bytes(b"no image")
    found = call("evaluate", made[1], images)
    assert found.exit_code == 0
    assert re.search(r"not know are left out: newt \(\d+\)$", found.stderr, re.MULTILINE)
    assert "broken.png" in found.stderr
    assert re.search(r"^unreadable +cannot read image", found.stdout, re.MULTILINE)
    shutil.rmtree(images / "ant")
    shutil.rmtree(images / "bee")
    refused = call("evaluate", made[1], images)
    assert refused.exit_code == 2
    assert "has no images of a class that this learner knows" in refused.stderr


def test_of_two_parts_the_test_images_are_used(
    made: tuple[Path, Path, Any], tmp_path: Path
) -> None:
    folder(tmp_path / "both" / "train", "ant", "bee", count=3)
    folder(tmp_path / "both" / "test", "ant", "bee", count=2, seed=3)
    found = grace.evaluate(Learner.load(made[1]), tmp_path / "both")
    assert len(found.results) == 4
    assert any("only the images in" in note for note in found.notes)


class TestHtml:
    def results(self, place: Path, count: int) -> Evaluated:
        place.mkdir()
        name = "<script>alert(1)</script>"
        paths = [place / f"{number}&.png" for number in range(count)]
        for number, path in enumerate(paths):
            picture("ant", number, 300).save(path)
        return Evaluated(
            model=place / "m",
            version=1,
            images=place,
            results=[ImageResult(path, name, "a & b", 0.9) for path in paths],
        )

    def test_it_is_one_file_with_escaped_names_and_small_pictures(self, tmp_path: Path) -> None:
        found = self.results(tmp_path / "images", 60)
        write_page(found, tmp_path / "page.html")
        text = (tmp_path / "page.html").read_text()
        assert "<script" not in text
        assert "&lt;script&gt;" in text
        assert "a &amp; b" in text
        assert text.count("<figure>") == text.count("data:image/jpeg;base64,") == 48
        assert len(text) < 800_000
        assert not re.search(r"""(src|href)=["']?(https?:|//)""", text)

    def test_a_picture_that_is_gone_leaves_its_words(self, tmp_path: Path) -> None:
        found = self.results(tmp_path / "images", 1)
        found.results[0].path.unlink()
        write_page(found, tmp_path / "page.html")
        assert "<img" not in (tmp_path / "page.html").read_text()

    def test_the_command_writes_it(
        self, made: tuple[Path, Path, Any], images: Path, tmp_path: Path
    ) -> None:
        found = call("evaluate", made[1], images, "--html", tmp_path / "page.html")
        assert found.exit_code == 0
        assert f"mistakes with their pictures: {tmp_path / 'page.html'}" in found.stdout
        assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
        refused = call("evaluate", made[1], images, "--html", tmp_path / "no" / "page.html")
        assert refused.exit_code == 2
