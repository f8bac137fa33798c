"""Answer for a saved learner with its twin, if there is one; otherwise with torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from grace.base.errors import GraceError
from grace.learner import twins
from grace.learner.onnx_graph import run_graph
from grace.learner.prediction import Answerer
from grace.learner.store import ModelStore


@contextmanager
def answering(
    directory: Path, version: int | None = None, *, makes_twin: bool = True
) -> Iterator[Answerer]:
    """Yield what answers for a saved learner; a twin that is missing is made at the context's end.

    Args:
        directory: home of the learner.
        version: number of a version; ``None``: the version in use.
        makes_twin: make a twin.

    Raises:
        GraceError: as ``Learner.load``.
        DamagedError: likewise.
    """
    saved = _saved(directory, version) if find_spec("onnxruntime") else None
    found = _opened(*saved) if saved else None
    if found is not None:
        yield found
        return
    # torch takes seconds to import.
    from grace.learner.answering import answerer_of, make_twin
    from grace.learner.learner import Learner

    learner = Learner.load(directory, version)
    yield answerer_of(learner)
    if makes_twin and saved:
        make_twin(learner, saved[-1])


def _saved(directory: Path, version: int | None) -> tuple[ModelStore, int, bytes] | None:
    """Return a learner's home, a version's number, and the content of its document's file.

    ``None``: there is none, or it cannot be read, and loading the learner says why.
    """
    try:
        store = ModelStore.open(directory)
        number = store.current() if version is None else version
        return None if number is None else (store, number, store.document_bytes(number))
    except (GraceError, OSError):
        return None


def _opened(store: ModelStore, number: int, data: bytes) -> Answerer | None:
    """Open the twin of a version; ``None``: there is none, or the version's weights are damaged."""
    found = twins.read(data)
    if found is None:
        return None
    twin, graph = found
    try:
        document = store.parsed(number, data)
        store.verify(document)
        threads = document.settings.engine.threads
        answer = run_graph(graph, document.shape, len(document.class_names), threads)
    except Exception:  # Of onnxruntime: it has many. torch answers, or says what is wrong.
        twins.remove(data)
        return None
    return Answerer(
        class_names=document.class_names,
        forgotten=document.forgotten,
        shape=document.shape,
        data=document.settings.data,
        score_name=twin.score_name,
        familiarities=twin.familiarities,
        left_out=twin.left_out,
        answer=answer,
    )
