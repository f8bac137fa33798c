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


class TestPredict:
    def test_all_forms_say_what_the_learner_says(self, saved: Path, photos: Path) -> None:
        learner = Learner.load(saved)
        expected = learner.predict_proba(IMAGES)
        paths = [str(photos / name) for name in NAMES]
        table = call("predict", saved, photos)
        assert (table.exit_code, table.stderr) == (0, "")
        head, *lines = table.stdout.splitlines()
        assert head.split() == ["class", "%", "image"]
        assert len(set(learner.predict(IMAGES))) > 1
        for line, own, path in zip(lines, expected, paths, strict=True):
            name, share = learner.class_names[int(own.argmax())], f"{100 * float(own.max()):.1f}"
            assert line.split()[:2] == [name, share]
            assert line.endswith(f"  {path}")
        found = call("predict", saved, photos, "--csv", "--top", 2)
        assert found.stdout.splitlines()[0] == (
            "image,class,probability,index,class_2,probability_2,index_2,error"
        )
        best = expected.sort(dim=1, descending=True)
        rows = rows_of(found.stdout_bytes)
        assert [row["image"] for row in rows] == paths
        for row, values, indices in zip(rows, best.values, best.indices, strict=True):
            assert row["error"] == ""
            for suffix, rank in (("", 0), ("_2", 1)):
                assert int(row[f"index{suffix}"]) == int(indices[rank])
                assert row[f"class{suffix}"] == learner.class_names[int(indices[rank])]
                assert np.float32(row[f"probability{suffix}"]) == values[rank].numpy()
        found = call("predict", saved, photos, "--json", "--top", 99)
        assert "猫" in found.stdout
        objects = [json.loads(line) for line in found.stdout.splitlines()]
        assert [own["image"] for own in objects] == paths
        for row, own in zip(objects, expected, strict=True):
            assert set(row) == {"image", "class", "index", "probability", "top"}
            # The forgotten cat is no guess.
            assert sorted(guess["class"] for guess in row["top"]) == ["Käse", "apple", "dog", "fox"]
            for guess in row["top"]:
                assert np.float32(guess["probability"]) == own[guess["index"]].numpy()
            assert row["top"][0] == {key: row[key] for key in ("class", "index", "probability")}

    def test_unreadable_images_are_rows_and_exit_code_1(self, saved: Path, photos: Path) -> None:
        (photos / "b.png").write_bytes(b"no image")
        (photos / "zoo" / "e.png").touch()
        forms = [call("predict", saved, photos, *form) for form in ((), ("--json",), ("--csv",))]
        for form in forms:
            assert form.exit_code == 1
            assert form.stderr == "2 of 6 images could not be read\n"
        table, lines, rows = forms
        assert f"'{photos / 'b.png'}'" in table.stdout.splitlines()[3]
        objects = [json.loads(line) for line in lines.stdout.splitlines()]
        assert ["error" in own for own in objects] == [False, False, True, False, False, True]
        assert set(objects[2]) == {"image", "error"}
        assert "the file is empty" in objects[5]["error"]
        row = rows_of(rows.stdout_bytes)[2]
        assert (row.pop("error"), row.pop("image")) == (
            objects[2]["error"], str(photos / "b.png")
        )  # fmt: skip
        assert set(row.values()) == {""}

    def test_unknown_images_are_marked_at_a_stated_rate(self, saved: Path, tmp_path: Path) -> None:
        learner = Learner.load(saved)
        pixels = learner.held_out.data().images.gather(torch.arange(12))
        for number, image in enumerate(pixels):
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{number:02}.png")
        # Of 12 images by which it is told, floor(0.4 · 13) - 1 = 4 lie below the cutoff.
        expected = learner.unknown(pixels, 0.4)
        assert sum(expected) == 4
        options = ("--unknown", "--false-alarms", 40)
        says = (
            "unknown: at most 40 % of images of learnt classes are marked so, calibrated on 12 "
            "held-out images\n"
        )
        table = call("predict", saved, tmp_path, *options)
        head, *lines, note = table.stdout.splitlines(keepends=True)
        assert (note, table.stderr) == (says, "")
        assert head.split() == ["class", "%", "unknown", "image"]
        assert [line.split()[2] == "unknown" for line in lines] == expected
        found = call("predict", saved, tmp_path, *options, "--json")
        objects = [json.loads(line) for line in found.stdout.splitlines()]
        assert [own["unknown"] for own in objects] == expected
        known = learner.recognise(pixels)[1].tolist()
        assert [own["familiarity"] for own in objects] == pytest.approx(known, abs=1e-5)
        found = call("predict", saved, tmp_path, *options, "--csv")
        assert [row["unknown"] for row in rows_of(found.stdout_bytes)] == [
            str(own).lower() for own in expected
        ]
        assert found.stdout.startswith("image,class,probability,index,unknown,familiarity,error\n")
        assert found.stderr == says

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["--json", "--csv"], "--json and --csv are two forms: choose one of them"),
            (["--unknown"], "5 % false alarms need at least 19 held-out images, this learner has"),
            (["--unknown", "--false-alarms", "100"], "100 % false alarms must lie between 0 and"),
            (["--version", "9"], "has no version 9 (it has 1, 2, 3, 4, 5)"),
        ],
    )
    def test_what_cannot_be_asked_is_one_line(
        self, arguments: list[str], says: str, saved: Path, photos: Path
    ) -> None:
        result = call("predict", saved, photos, *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
        assert says in result.stderr

    def test_no_learner_and_no_images(self, saved: Path, photos: Path) -> None:
        assert "is no learner" in call("predict", photos, photos).stderr
        (photos / "bare").mkdir()
        assert "holds no images" in call("predict", saved, photos / "bare").stderr
        share = call("predict", saved, photos, "--unknown", "--false-alarms", 0.4).stderr
        assert "--false-alarms 0.4 is 0.4 %: for a share of 0.4 use --false-alarms 40" in share

    def test_an_earlier_version_knows_its_classes_alone(self, saved: Path, photos: Path) -> None:
        result = call("predict", saved, photos, "--version", 1, "--json", "--top", 9)
        for line in result.stdout.splitlines():
            assert sorted(own["class"] for own in json.loads(line)["top"]) == ["Käse", "apple"]

    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere file names are Unicode")
    def test_a_file_name_that_is_no_text_stays_what_it_is(
        self, saved: Path, tmp_path: Path
    ) -> None:
        name = os.fsencode(tmp_path) + b"/\xff\n.png"
        Image.fromarray(IMAGES[0].permute(1, 2, 0).numpy()).save(tmp_path / "plain.png")
        (tmp_path / "plain.png").rename(os.fsdecode(name))
        (line,) = call("predict", saved, tmp_path, "--json").stdout.splitlines()
        assert os.fsencode(json.loads(line)["image"]) == name
        assert b'"' + name + b'"' in call("predict", saved, tmp_path, "--csv").stdout_bytes
        lines = call("predict", saved, tmp_path).stdout.splitlines()
        assert len(lines) == 2
        assert not any(unicodedata.category(character) == "Cc" for character in lines[1])

    def test_rows_come_batch_by_batch_and_a_closed_pipe_is_silent(
        self, saved: Path, photos: Path
    ) -> None:
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
        self, saved: Path, photos: Path
    ) -> None:
        names = f"{photos / 'a.png'}\n\nabsent.png\n".encode()
        result = call("predict", saved, "-", "--json", input=names)
        first, second = (json.loads(line) for line in result.stdout.splitlines())
        assert result.exit_code == 1
        assert (first["image"], second["image"]) == (str(photos / "a.png"), "absent.png")
        assert "class" in first
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
        found = grace.evaluate(made[1], images)
        assert found.facts == told
        assert [own.probability for own in found.results] == pytest.approx(
            [row["probability"] for row in said]
        )
        lines = call("evaluate", made[1], images).stdout.splitlines()
        assert lines[0] == f"version 1 of '{made[1]}' on '{images}'"
        text = "\n".join(lines)
        assert re.search(r"^accuracy +\d+\.\d %$", text, re.MULTILINE)
        assert re.search(r"^accuracy interval +\d+ – \d+ %$", text, re.MULTILINE)
        assert re.search(r"^ant +6 +\d +\d+\.\d %", text, re.MULTILINE)

    def test_the_exit_code_for_ci(self, made: tuple[Path, Path, Any], images: Path) -> None:
        # Ants under the name of bees are never all right.
        (images / "bee" / "ant.png").write_bytes((images / "ant" / "000.png").read_bytes())
        right = 100 * grace.evaluate(made[1], images).accuracy
        assert call("evaluate", made[1], images, "--min-accuracy", right).exit_code == 0
        low = call("evaluate", made[1], images, "--min-accuracy", 100)
        assert low.exit_code == 3
        assert "the accuracy is below 100 %" in low.stderr

    def test_what_is_left_out_is_said(self, made: tuple[Path, Path, Any], images: Path) -> None:
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
        self, made: tuple[Path, Path, Any], tmp_path: Path
    ) -> None:
        folder(tmp_path / "both" / "train", "ant", "bee", count=3)
        folder(tmp_path / "both" / "test", "ant", "bee", count=2, seed=3)
        found = grace.evaluate(Learner.load(made[1]), tmp_path / "both")
        assert len(found.results) == 4
        assert any("only the images in" in note for note in found.notes)

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

    def test_the_command_writes_it(
        self, made: tuple[Path, Path, Any], images: Path, tmp_path: Path
    ) -> None:
        page = tmp_path / "page.html"
        found = call("evaluate", made[1], images, "--html", page)
        assert found.exit_code == 0
        assert f"mistakes with their pictures: {page}" in found.stdout
        assert page.read_text().startswith("<!doctype html>")
        refused = call("evaluate", made[1], images, "--html", tmp_path / "no" / "page.html")
        assert refused.exit_code == 2


class TestExport:
    def test_a_version_is_exported_and_not_written_over(self, copied: Path) -> None:
        path = copied.parent / "pets.onnx"
        path.write_bytes(b"mine")
        again = call("export", copied)
        assert (again.exit_code, again.stdout) == (2, "")
        assert again.stderr == (
            f"error: '{path}' exists already: choose another --out, or use --force\n"
        )
        assert path.read_bytes() == b"mine"
        result = call("export", copied, "--version", "1", "--force")
        assert (result.exit_code, result.stderr) == (0, "")
        first, second = result.stdout.splitlines()
        assert first == f"{path}: {path.stat().st_size / 1000:.0f} kB, version 1"
        assert re.fullmatch(
            r"checked on 6 held-out images: the same classes, logits within \d(e-\d\d)?", second
        )
        about = json.loads(onnx.load(path).metadata_props[0].value)
        assert (about["model_version"], about["class_names"]) == (1, ["apple", "Käse"])

    def test_what_cannot_be_done_is_one_line(
        self, copied: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for arguments, says in (
            (["--out", "no/such/folder/pets.onnx"], "there is no folder 'no/such/folder'"),
            (["--version", "9"], "has no version 9"),
        ):
            result = call("export", copied, *arguments)
            assert (result.exit_code, result.stdout) == (2, "")
            assert result.stderr.count("\n") == 1
            assert says in result.stderr
        # The file is named after the model.
        (copied / "below").mkdir()
        for place, model in ((copied, "."), (copied / "below", ".."), (copied.parent, "pets/")):
            monkeypatch.chdir(place)
            copied.with_name("pets.onnx").write_bytes(b"mine")
            assert "pets.onnx' exists already" in call("export", model).stderr
