"""``grace predict``, called as people call it."""

import csv
import io
import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from grace.learner.learner import Learner
from support.commands import call
from support.saved_learners import copied as copied
from support.saved_learners import saved as saved
from support.tiny_streams import pictures
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.usefixtures("tiny_backbones")

SEEN = (0, 4, 3, 1)
"""Classes of the images in the folder, in its order."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four images, one of them deeper and two with difficult names, and a file that is none."""
    place = tmp_path / "Bilder"
    (place / "zoo").mkdir(parents=True)
    names = ("a.png", 'b, "Äpfel".png', "c 猫.png", "zoo/d.png")
    for name, image in zip(names, images(), strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / name)
    (place / "notes.txt").write_text("no image")
    return place


def images() -> Tensor:
    return torch.cat([pictures(index, 1, seed=5) for index in SEEN])


def paths(folder: Path) -> list[str]:
    return [str(folder / name) for name in ("a.png", 'b, "Äpfel".png', "c 猫.png", "zoo/d.png")]


def test_a_table_names_classes_in_percent(saved: Path, folder: Path) -> None:
    result = call("predict", saved, folder)
    assert (result.exit_code, result.stderr) == (0, "")
    head, *lines = result.stdout.splitlines()
    assert head.split() == ["class", "%", "image"]
    learner = Learner.load(saved)
    probabilities = learner.predict_proba(images()).max(dim=1).values
    assert len(lines) == 4
    assert len(set(learner.predict(images()))) > 1
    for line, name, probability, path in zip(
        lines, learner.predict(images()), probabilities, paths(folder), strict=True
    ):
        assert line.startswith(f"{name} ")
        assert line.split()[1] == f"{100 * float(probability):.1f}"
        assert line.endswith(f"  {path}")


def test_csv_can_be_read_back_exactly(saved: Path, folder: Path) -> None:
    result = call("predict", saved, folder, "--csv", "--top", 2)
    assert (result.exit_code, result.stderr) == (0, "")
    rows = list(csv.DictReader(io.StringIO(result.stdout_bytes.decode("utf-8"), newline="")))
    assert result.stdout.splitlines()[0] == (
        "image,class,probability,index,class_2,probability_2,index_2,error"
    )
    assert [row["image"] for row in rows] == paths(folder)
    expected = Learner.load(saved).predict_proba(images()).sort(dim=1, descending=True)
    names = ("apple", "Käse", "cat", "dog", "fox")
    for row, values, indices in zip(rows, expected.values, expected.indices, strict=True):
        assert row["error"] == ""
        for suffix, rank in (("", 0), ("_2", 1)):
            index = int(row[f"index{suffix}"])
            assert index == int(indices[rank])
            assert row[f"class{suffix}"] == names[index]
            assert np.float32(row[f"probability{suffix}"]) == values[rank].numpy()


def test_json_lines_are_one_object_per_image(saved: Path, folder: Path) -> None:
    result = call("predict", saved, folder, "--json", "--top", 99)
    assert (result.exit_code, result.stderr) == (0, "")
    objects = [json.loads(line) for line in result.stdout.splitlines()]
    assert [own["image"] for own in objects] == paths(folder)
    assert "猫" in result.stdout
    probabilities = Learner.load(saved).predict_proba(images())
    for own, expected in zip(objects, probabilities, strict=True):
        assert set(own) == {"image", "class", "index", "probability", "top"}
        # The forgotten cat is no guess.
        assert sorted(guess["class"] for guess in own["top"]) == ["Käse", "apple", "dog", "fox"]
        for guess in own["top"]:
            assert np.float32(guess["probability"]) == expected[guess["index"]].numpy()
        assert own["top"][0] == {key: own[key] for key in ("class", "index", "probability")}


def test_unreadable_images_are_rows_and_exit_code_1(saved: Path, folder: Path) -> None:
    (folder / "b.png").write_bytes(b"no image")
    (folder / "zoo" / "e.png").touch()
    table = call("predict", saved, folder)
    assert table.exit_code == 1
    assert table.stderr == "2 of 6 images could not be read\n"
    assert f"'{folder / 'b.png'}'" in table.stdout.splitlines()[3]
    lines = call("predict", saved, folder, "--json")
    assert (lines.exit_code, lines.stderr) == (1, "2 of 6 images could not be read\n")
    objects = [json.loads(line) for line in lines.stdout.splitlines()]
    assert ["error" in own for own in objects] == [False, False, True, False, False, True]
    assert set(objects[2]) == {"image", "error"}
    assert "the file is empty" in objects[5]["error"]
    result = call("predict", saved, folder, "--csv", "--top", 2)
    assert (result.exit_code, result.stderr) == (1, "2 of 6 images could not be read\n")
    rows = list(csv.DictReader(io.StringIO(result.stdout, newline="")))
    assert rows[2]["error"] == objects[2]["error"]
    empty = {key: value for key, value in rows[2].items() if key not in ("image", "error")}
    assert set(empty.values()) == {""}
    assert rows[2]["image"] == str(folder / "b.png")


def test_unknown_images_are_marked_at_a_stated_rate(saved: Path, tmp_path: Path) -> None:
    learner = Learner.load(saved)
    held_out = learner.held_out.data()
    pixels = held_out.images.gather(torch.arange(12))
    for number, image in enumerate(pixels):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{number:02}.png")
    # Of 12 images by which it is told, floor(0.4 · 13) - 1 = 4 lie below the cutoff.
    expected = learner.unknown(pixels, 0.4)
    assert sum(expected) == 4
    options = ("--unknown", "--false-alarms", 40)
    says = (
        "unknown: at most 40 % of images of learnt classes are marked so, calibrated on 12 "
        "held-out images (score: energy)\n"
    )
    table = call("predict", saved, tmp_path, *options)
    head, *lines, note = table.stdout.splitlines(keepends=True)
    assert (note, table.stderr) == (says, "")
    assert head.split() == ["class", "%", "unknown", "image"]
    assert [line.split()[2] == "unknown" for line in lines] == expected
    jsonl = call("predict", saved, tmp_path, *options, "--json")
    assert [json.loads(line)["unknown"] for line in jsonl.stdout.splitlines()] == expected
    shown = [json.loads(line)["familiarity"] for line in jsonl.stdout.splitlines()]
    assert shown == pytest.approx(learner.recognise(pixels)[1].tolist(), abs=1e-5)
    assert jsonl.stderr == says
    rows = call("predict", saved, tmp_path, *options, "--csv")
    found = [row["unknown"] for row in csv.DictReader(io.StringIO(rows.stdout))]
    assert found == [str(own).lower() for own in expected]
    assert rows.stdout.startswith("image,class,probability,index,unknown,familiarity,error\n")
    assert rows.stderr == says


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--unknown"], "5 % false alarms need at least 19 held-out images, this learner has 12"),
        (["--unknown", "--false-alarms", "100"], "100 % false alarms must lie between 0 and 100 %"),
        (["--unknown", "--false-alarms", "1"], "1 % false alarms need at least 99 held-out"),
        (["--version", "9"], "has no version 9 (it has 1, 2, 3, 4, 5)"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    arguments: list[str], says: str, saved: Path, folder: Path
) -> None:
    result = call("predict", saved, folder, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert says in result.stderr


def test_no_learner_and_no_images(saved: Path, folder: Path) -> None:
    assert "is no learner" in call("predict", folder, folder).stderr
    (folder / "bare").mkdir()
    result = call("predict", saved, folder / "bare")
    assert result.exit_code == 2
    assert "holds no images" in result.stderr


def test_false_alarms_alone_are_refused(saved: Path, folder: Path) -> None:
    result = call("predict", saved, folder, "--false-alarms", 30)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: --false-alarms has no effect without --unknown: add --unknown\n"


def test_a_share_of_false_alarms_is_taken_for_a_mistake(saved: Path, folder: Path) -> None:
    result = call("predict", saved, folder, "--unknown", "--false-alarms", 0.4)
    warning, error = result.stderr.splitlines()
    assert warning == (
        "warning: --false-alarms 0.4 is 0.4 %: for a share of 0.4 use --false-alarms 40"
    )
    # 1/(n + 1) is at most 0.4 % from 249 images on.
    assert "0.4 % false alarms need at least 249 held-out images" in error


def test_an_earlier_version_knows_its_classes_alone(saved: Path, folder: Path) -> None:
    result = call("predict", saved, folder, "--version", 1, "--json", "--top", 9)
    for line in result.stdout.splitlines():
        assert sorted(guess["class"] for guess in json.loads(line)["top"]) == ["Käse", "apple"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere file names are Unicode")
def test_a_file_name_that_is_no_text_stays_what_it_is(saved: Path, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff\n.png"
    Image.fromarray(images()[0].permute(1, 2, 0).numpy()).save(tmp_path / "plain.png")
    (tmp_path / "plain.png").rename(os.fsdecode(name))
    (line,) = call("predict", saved, tmp_path, "--json").stdout.splitlines()
    assert os.fsencode(json.loads(line)["image"]) == name
    rows = call("predict", saved, tmp_path, "--csv").stdout_bytes
    assert b'"' + name + b'"' in rows
    table = call("predict", saved, tmp_path)
    assert table.exit_code == 0
    lines = table.stdout.splitlines()
    assert len(lines) == 2
    assert not any(unicodedata.category(character) == "Cc" for character in lines[1])


def test_rows_come_batch_by_batch_and_a_closed_pipe_is_silent(saved: Path, folder: Path) -> None:
    for number in range(60):
        (folder / f"{number}.png").symlink_to("a.png")
    script = (
        "import sys\nimport grace.methods.module_factory\nfrom support import tiny_streams\n"
        "from grace.cli import main\nfrom grace.learner import prediction\n"
        "grace.methods.module_factory.build_backbone = tiny_streams._resnet8\n"
        "first = prediction.FilePredictor._judged\n"
        "def judged(self, paths, images):\n"
        "    if str(paths[0]).endswith('a.png'):\n"
        "        sys.stdin.readline()\n"
        "    return first(self, paths, images)\n"
        "prediction.FilePredictor._judged = judged\n"
        "prediction.FilePredictor.__init__.__kwdefaults__['batch_size'] = 20\n"
        f"sys.argv = ['grace', 'predict', {str(saved)!r}, {str(folder)!r}, '--csv']\n"
        "main()\n"
    )
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    # The fourth batch, which holds a.png, waits for us: the first ones are here already.
    lines = [process.stdout.readline() for _ in range(61)]
    assert all(b".png" in line for line in lines[1:])
    process.stdout.close()
    process.stdin.write(b"\n")
    process.stdin.close()
    errors = process.stderr.read()
    process.stderr.close()
    process.wait()
    assert errors == b""


def test_a_missing_path_is_a_row_and_lists_come_from_standard_input(
    saved: Path, folder: Path
) -> None:
    names = f"{folder / 'a.png'}\n\nabsent.png\n".encode()
    result = call("predict", saved, "-", "--json", input=names)
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert result.exit_code == 1
    assert (first["image"], second["image"]) == (str(folder / "a.png"), "absent.png")
    assert "class" in first
    assert "does not exist: check the spelling" in second["error"]
    assert "1 of 2 images could not be read" in result.stderr
