"""What answers for a learner: with torch the learner itself, without torch its twin.

Shapes: N images, C channels, H×W pixels, K classes.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch

from grace.base.errors import GraceError
from grace.data.decoding import Pixels
from grace.learner import twins
from grace.learner.export import traced
from grace.learner.exporting import check_images, preprocessing_of
from grace.learner.learner import Learner
from grace.learner.onnx_graph import run_graph
from grace.learner.prediction import Answerer, Numbers
from grace.learner.store import ModelStore


def answerer_of(learner: Learner) -> Answerer:
    """Return the answerer of a learner that is loaded."""

    def answer(pixels: Pixels) -> tuple[Numbers, Numbers]:
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        scores, familiarities = learner.recognise(images)
        return scores.softmax(dim=1).numpy(), familiarities.numpy()

    return Answerer(
        class_names=learner.class_names,
        forgotten=learner.forgotten,
        shape=learner.shape,
        data=learner.settings.data,
        score_name=learner.recogniser.score.name,
        familiarities=learner.familiarities,
        left_out=learner.recogniser.left_out,
        answer=answer,
    )


def make_twin(learner: Learner, document: bytes) -> None:
    """Make the twin of a learner, which was loaded from a version's document, if it has none.

    It takes half a second for a ResNet-32. Nothing is made for a GPU, for large weights, and where
    the twin's answers differ. If it cannot be made, that is no error.
    """
    on_cpu = learner.trainer.device.torch_device.type == "cpu"
    is_small = learner.size().weight_bytes < twins.MAX_BYTES
    if not (on_cpu and is_small and twins.is_missing(document)):
        return
    store, number = learner.home, learner.version
    assert store is not None
    assert number is not None
    with suppress(OSError, GraceError, MemoryError, KeyboardInterrupt):
        made = twin_of(learner)
        # A class may be forgotten meanwhile: then nothing of it shall be left.
        if _has(store, number, document):
            twins.write(document, *made)
        if not _has(store, number, document):
            twins.remove(document)


def _has(store: ModelStore, number: int, document: bytes) -> bool:
    """Return ``True`` if a version is still there, with this document, as far as can be read."""
    try:
        return store.document_bytes(number) == document
    except (GraceError, OSError):
        return False


def twin_of(learner: Learner) -> tuple[twins.Twin | None, bytes]:
    """Return a learner's twin and its graph; ``None``: it would not answer like the learner.

    Probabilities must agree to 1e-5, familiarities to 1e-3 (above 1, of their size): those that
    are sums are logits divided by a small deviation, whose rounding shows more.
    """
    answerer, model = answerer_of(learner), learner.model
    classifier, score = model.classifier(), learner.recogniser.score
    images, _, _ = check_images(model.state.method, learner.held_out, learner.shape, most=8)
    pixels = images.permute(0, 2, 3, 1).numpy()
    with warnings.catch_warnings(), _silent():
        warnings.simplefilter("ignore")
        try:
            twin = twins.Twin(
                score_name=answerer.score_name,
                familiarities=tuple(learner.familiarities.tolist()),
                left_out=tuple(learner.recogniser.left_out.tolist()),
            )
            graph = traced(classifier.score, classifier.backbones, preprocessing_of(model), score)
            run = run_graph(
                graph, learner.shape, len(learner.class_names), learner.settings.engine.threads
            )
            # Batches of other sizes than the one that was traced.
            found = [run(pixels[:1]), run(pixels[1:])] if len(pixels) > 1 else [run(pixels)]
        except Exception:  # Torch's exporter and onnxruntime have many; scores may be infinite.
            return None, b""
    expected = answerer.answer(pixels)
    for own, other, bound in zip(expected, zip(*found, strict=True), (1e-5, 1e-3), strict=True):
        joined = np.concatenate(other)
        is_close = own.shape == joined.shape and bool(
            (np.abs(own - joined) <= bound * np.maximum(1, np.abs(own))).all()
        )
        if not is_close:
            return None, b""
    return twin, graph


@contextmanager
def _silent() -> Iterator[None]:
    """Drop what is printed: torch's exporter prints what it cannot export, past Python."""
    before = os.dup(1)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        os.dup2(before, 1)
        os.close(before)
