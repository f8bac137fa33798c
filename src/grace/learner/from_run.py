"""Make a model of the state that a run kept."""

from pathlib import Path

from grace.base.errors import GraceError
from grace.engine.progress import Progress
from grace.learner.document import UpdateRecord
from grace.learner.model import Model
from grace.methods.saved import FILE, read, restore


def model_of_run(directory: Path, progress: Progress | None) -> Model:
    """Return a model that knows what a run has learnt; see ``Learner.from_run``."""
    path = directory / FILE
    if not path.exists():
        raise GraceError(f"'{directory}' holds no state of a run (no {FILE})", "run it with --keep")
    saved, kept = read(path)
    model = Model(saved.settings, saved.shape, saved.mean, saved.std, progress, is_saved=True)
    state = model.state
    restore(state.method, saved, kept, f"'{path}'")
    state.method.state.refuse_unfit(saved.shape)
    state.class_names = saved.class_names
    state.history = [
        UpdateRecord(task=number, new_class_names=task.new_class_names, outcome=task.outcome)
        for number, task in enumerate(saved.tasks, start=1)
    ]
    return model
