"""``grace predict``, ``evaluate`` and ``export``, called as people call them."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

import grace
from grace.cli.ask import write_page
from grace.learner.evaluate import Evaluated, ImageResult
from grace.learner.learner import Learner
from support.commands import call
from support.learn_calls import made as made
from support.picture_folders import folder, picture
from support.saved_learners import copied as copied
from support.saved_learners import saved as saved
from support.tiny_streams import pictures
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.usefixtures("tiny_backbones")

NAMES = ("a.png", 'b, "Äpfel".png', "c 猫.png", "zoo/d.png")
IMAGES = torch.cat([pictures(index, 1, seed=5) for index in (0, 4, 3, 1)])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four images, one of them deeper and two with difficult names, and a file that is none."""
    place = tmp_path / "Bilder"
    (place / "zoo").mkdir(parents=True)
    for name, image in zip(NAMES, IMAGES, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / name)
    (place / "notes.txt").write_text("no image")
    return place


def rows_of(text: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.decode("utf-8"), newline="")))


def test_all_forms_say_what_the_learner_says(saved: Path, photos: Path) -> None:
    (photos / "zoo" / "e.png").touch()
    learner = Learner.load(saved)
    best = learner.predict_proba(IMAGES).sort(dim=1, descending=True)
    names = [[learner.class_names[i] for i in row.tolist()] for row in best.indices]
    paths = [str(photos / name) for name in NAMES]
    options = ((), ("--csv", "--top", 2), ("--json", "--top", 99))
    table, rows, lines = (call("predict", saved, photos, *form) for form in options)
    for form in (table, rows, lines):
        assert (form.exit_code, form.stderr) == (1, "1 of 5 images could not be read\n")
    head, *shown, unread = table.stdout.splitlines()
    assert head.split() == ["class", "%", "image"]
    for line, own, shares, path in zip(shown, names, best.values, paths, strict=True):
        assert line.split()[:2] == [own[0], f"{100 * float(shares[0]):.1f}"]
        assert line.endswith(f"  {path}")
    assert "the file is empty" in unread
    assert rows.stdout.splitlines()[0] == (
        "image,class,probability,index,class_2,probability_2,index_2,error"
    )
    *found, empty = rows_of(rows.stdout_bytes)
    assert "the file is empty" in empty.pop("error")
    assert empty.pop("image") == str(photos / "zoo" / "e.png")
    assert set(empty.values()) == {""}
    for row, own, shares, path in zip(found, names, best.values, paths, strict=True):
        assert [row[key] for key in ("image", "class", "class_2", "error")] == [path, *own[:2], ""]
        assert np.float32(row["probability_2"]) == shares[1].numpy()
    assert "猫" in lines.stdout
    *objects, problem = (json.loads(line) for line in lines.stdout.splitlines())
    assert problem.keys() == {"image", "error"}
    for row, own, shares, path in zip(objects, names, best.values, paths, strict=True):
        # The forgotten cat is no guess.
        assert [guess["class"] for guess in row["top"]] == own[:4]
        assert [np.float32(guess["probability"]) for guess in row["top"]] == shares[:4].tolist()
        assert row == {"image": path, **row["top"][0], "top": row["top"]}


def test_unknown_images_are_marked_at_a_stated_rate(saved: Path, tmp_path: Path) -> None:
    learner = Learner.load(saved)
    pixels = learner.held_out.data().images.gather(torch.arange(12))
    for number, image in enumerate(pixels):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{number:02}.png")
    # Of 12 images by which it is told, floor(0.4 · 13) - 1 = 4 lie below the cutoff.
    expected = learner.unknown(pixels, 0.4)
    assert sum(expected) == 4
    options = ("predict", saved, tmp_path, "--unknown", "--false-alarms", 40)
    says = (
        "unknown: at most 40 % of images of learnt classes are marked so, calibrated on 12 "
        "held-out images\n"
    )
    table, lines, rows = call(*options), call(*options, "--json"), call(*options, "--csv")
    head, *shown, note = table.stdout.splitlines(keepends=True)
    assert (note, table.stderr, rows.stderr, lines.stderr) == (says, "", says, says)
    assert head.split() == ["class", "%", "unknown", "image"]
    assert [line.split()[2] == "unknown" for line in shown] == expected
    objects = [json.loads(line) for line in lines.stdout.splitlines()]
    assert [own["unknown"] for own in objects] == expected
    known = learner.recognise(pixels)[1].tolist()
    assert [own["familiarity"] for own in objects] == pytest.approx(known, abs=1e-5)
    found = [row["unknown"] for row in rows_of(rows.stdout_bytes)]
    assert found == [str(own).lower() for own in expected]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--json", "--csv"], "--json and --csv are two forms: choose one of them"),
        (["--unknown"], "5 % false alarms need at least 19 held-out images, this learner has"),
        (["--version", "9"], "has no version 9 (it has 1, 2, 3, 4, 5)"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    arguments: list[str], says: str, saved: Path, photos: Path
) -> None:
    result = call("predict", saved, photos, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
    assert "is no learner" in call("predict", photos, photos).stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere file names are Unicode")
def test_a_file_name_that_is_no_text_stays_what_it_is(saved: Path, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff\n.png"
    Image.fromarray(IMAGES[0].permute(1, 2, 0).numpy()).save(tmp_path / "plain.png")
    (tmp_path / "plain.png").rename(os.fsdecode(name))
    found = json.loads(
        call("predict", saved, tmp_path, "--json", "--version", 1, "--top", 9).stdout
    )
    assert os.fsencode(found["image"]) == name
    # An earlier version knows its classes alone.
    assert sorted(own["class"] for own in found["top"]) == ["Käse", "apple"]
    assert b'"' + name + b'"' in call("predict", saved, tmp_path, "--csv").stdout_bytes
    lines = call("predict", saved, tmp_path).stdout.splitlines()
    assert len(lines) == 2
    assert not any(unicodedata.category(character) == "Cc" for character in lines[1])


def test_rows_come_batch_by_batch_and_a_closed_pipe_is_silent(saved: Path, photos: Path) -> None:
    for number in range(60):
        (photos / f"{number}.png").symlink_to("a.png")
    script = (
        "import sys\nimport grace.methods.module_factory\nfrom support import tiny_streams\n"
        "from grace.cli import main\nfrom grace.learner import prediction\n"
        "grace.methods.module_factory.build_backbone = tiny_streams._resnet8\n"
        "first = prediction.in_shape\n"
        "def read(path, *given):\n"
        "    if str(path).endswith('a.png'):\n"
        "        sys.stdin.readline()\n"
        "    return first(path, *given)\n"
        "prediction.in_shape = read\n"
        "prediction.predict_files.__defaults__ = (1, 20)\n"
        f"sys.argv = ['grace', 'predict', {str(saved)!r}, {str(photos)!r}, '--csv']\n"
        "main()\n"
    )
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        # The fourth batch, which holds a.png, waits for us: the first ones are here already.
        lines = [process.stdout.readline() for _ in range(61)]
        assert all(b".png" in line for line in lines[1:])
        process.stdout.close()
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.stderr.read() == b""


def test_a_missing_path_is_a_row_and_lists_come_from_standard_input(
    saved: Path, photos: Path
) -> None:
    names = f"{photos / 'a.png'}\n\nabsent.png\n".encode()
    result = call("predict", saved, "-", "--json", input=names)
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert result.exit_code == 1
    assert (first["image"], second["image"]) == (str(photos / "a.png"), "absent.png")
    assert "does not exist: check the spelling" in second["error"]


class TestEvaluate:
    @pytest.fixture
    def images(self, tmp_path: Path) -> Path:
        return folder(tmp_path / "images", "ant", "bee", count=6, seed=7)

    def test_it_counts_what_predict_says(self, made: tuple[Path, Path, Any], images: Path) -> None:
        told = json.loads(call("evaluate", made[1], images, "--json").stdout)
        rows = call("predict", made[1], images, "--json").stdout.splitlines()
        said = [json.loads(row) for row in rows]
        right = [Path(row["image"]).parent.name == row["class"] for row in said]
        assert (told["num_images"], told["num_right"]) == (12, sum(right))
        assert sum(own["num_right"] for own in told["classes"]) == sum(right)
        assert sum(pair["num_images"] for pair in told["confusions"]) == 12 - sum(right)
        assert grace.evaluate(made[1], images).facts == told
        page = images.parent / "page.html"
        shown = call("evaluate", made[1], images, "--html", page)
        assert (shown.exit_code, page.read_text()[:15]) == (0, "<!doctype html>")
        lines = shown.stdout.splitlines()
        assert lines[0] == f"version 1 of '{made[1]}' on '{images}'"
        assert lines[-1] == f"mistakes with their pictures: {page}"
        assert re.search(r"^accuracy +\d+\.\d %$", shown.stdout, re.MULTILINE)
        assert re.search(r"^accuracy interval +\d+ – \d+ %$", shown.stdout, re.MULTILINE)
        assert re.search(r"^ant +6 +\d +\d+\.\d %", shown.stdout, re.MULTILINE)
        refused = call("evaluate", made[1], images, "--html", images / "no" / "page.html")
        assert refused.exit_code == 2

    def test_the_exit_code_for_ci(self, made: tuple[Path, Path, Any], images: Path) -> None:
        # Ants under the name of bees are never all right.
        (images / "bee" / "ant.png").write_bytes((images / "ant" / "000.png").read_bytes())
        right = 100 * grace.evaluate(made[1], images).accuracy
        assert call("evaluate", made[1], images, "--min-accuracy", right).exit_code == 0
        low = call("evaluate", made[1], images, "--min-accuracy", 100)
        assert (low.exit_code, low.stderr) == (3, "the accuracy is below 100 %\n")

    def test_what_is_left_out_is_said(self, made: tuple[Path, Path, Any], images: Path) -> None:
        # Of two parts the test images are used.
        shutil.move(images, images.parent / "test")
        folder(images / "train", "ant", "bee", "cat", count=3)
        test = shutil.move(images.parent / "test", images / "test")
        shutil.copytree(test / "bee", test / "cat")
        (test / "ant" / "broken.png").write_bytes(b"no image")
        found = call("evaluate", made[1], images, "--json")
        assert (found.exit_code, json.loads(found.stdout)["num_images"]) == (0, 12)
        assert re.search(r"not know are left out: cat \(\d+\)$", found.stderr, re.MULTILINE)
        assert "broken.png" in found.stderr
        assert "only the images in" in found.stderr
        for name in ("ant", "bee"):
            shutil.rmtree(test / name)
            shutil.rmtree(images / "train" / name)
        folder(images / "train", "dog", count=3)
        folder(test, "dog", count=3)
        refused = call("evaluate", made[1], images)
        assert refused.exit_code == 2
        assert "has no images of a class that this learner knows" in refused.stderr

    def test_a_page_is_one_file_with_escaped_names_and_small_pictures(self, tmp_path: Path) -> None:
        name, images = "<script>alert(1)</script>", tmp_path / "images"
        images.mkdir()
        paths = [images / f"{number}&.png" for number in range(60)]
        picture("ant", 1, 300).save(paths[1])
        for path in paths[2:]:
            path.symlink_to(paths[1])
        results = [ImageResult(path, name, "a & b", 0.9) for path in paths]
        found = Evaluated(model=tmp_path / "m", version=1, images=images, results=results)
        write_page(found, tmp_path / "page.html")
        text = (tmp_path / "page.html").read_text()
        assert "<script" not in text
        assert "&lt;script&gt;" in text
        assert "a &amp; b" in text
        # The picture that is gone leaves its words.
        assert (text.count("<figure>"), text.count("data:image/jpeg;base64,")) == (48, 47)
        assert len(text) < 800_000
        assert not re.search(r"""(src|href)=["']?(https?:|//)""", text)


def test_a_version_is_exported_and_not_written_over(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copied.parent / "pets.onnx"
    path.write_bytes(b"mine")
    # The file is named after the model.
    (copied / "below").mkdir()
    for place, model in ((copied, "."), (copied / "below", ".."), (copied.parent, "pets/")):
        monkeypatch.chdir(place)
        again = call("export", model)
        assert (again.exit_code, again.stdout) == (2, "")
        assert "pets.onnx' exists already: choose another name, or use --force" in again.stderr
    assert path.read_bytes() == b"mine"
    refused = call("export", copied, "--out", "no/such/folder/pets.onnx")
    assert "there is no folder 'no/such/folder'" in refused.stderr
    result = call("export", copied, "--version", "1", "--force")
    assert (result.exit_code, result.stderr) == (0, "")
    first, second = result.stdout.splitlines()
    assert first == f"{path}: {path.stat().st_size / 1000:.0f} kB, version 1"
    assert re.fullmatch(
        r"checked on 6 held-out images: the same classes, logits within \d(e-\d\d)?", second
    )
    about = json.loads(onnx.load(path).metadata_props[0].value)
    assert (about["model_version"], about["class_names"]) == (1, ["apple", "Käse"])
