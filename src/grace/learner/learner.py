"""The learner: a model that learns task by task, and the home that keeps its versions."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self, final

import torch
from torch import Tensor

from grace.base.errors import GraceError
from grace.base.words import did_you_mean_one_of
from grace.data.decoders import Pixels
from grace.engine.progress import Progress
from grace.learner import update, versions
from grace.learner.adapt import model_of_run, new_model, with_changes
from grace.learner.admit import check_input
from grace.learner.calibration import Recogniser
from grace.learner.document import UpdateRecord
from grace.learner.export import Exported, export_checked
from grace.learner.gate import limits
from grace.learner.given_images import AnyImages, as_labels
from grace.learner.inventory import card_of
from grace.learner.model import Model
from grace.learner.model_state import HeldOut, Size
from grace.learner.prediction import Answerer, Numbers
from grace.learner.setting_changes import SettingChange, differences
from grace.learner.store import ModelStore
from grace.methods.method import Method
from grace.settings.experiment import EngineSettings, ExperimentSettings
from grace.settings.load import load_experiment


@final
class Learner:
    """A classifier that learns new classes from their images alone.

    A learner with a home (a directory) saves every update there as a version; an interrupted
    update goes on where it stopped when it is called again. Without a home it lives in memory.

    ``create`` and ``load`` make one.

    Args:
        model: the model in memory, without its home.

    Examples:
        >>> learner = Learner.create("folder", shape=(3, 32, 32))  # doctest: +SKIP
        >>> learner.update(images, ["cat", "dog", ...])
        >>> learner.predict(images)
        >>> learner.save("pets")
        >>> Learner.load("pets").update(more_images, ["parrot", ...])
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.home: ModelStore | None = None
        """The directory of its versions; ``None``: the learner lives in memory."""

    @property
    def settings(self) -> ExperimentSettings:
        """Method, backbone, memory, augmentation, seeds, engine."""
        return self.model.settings

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of every image."""
        return self.model.shape

    @property
    def method(self) -> Method:
        """The method with its network and exemplars."""
        return self.model.state.method

    @property
    def class_names(self) -> list[str]:
        """Names of all classes by index, forgotten classes included."""
        return self.model.state.class_names

    @property
    def forgotten(self) -> set[int]:
        """Indices of the forgotten classes."""
        return self.model.state.forgotten

    @property
    def history(self) -> list[UpdateRecord]:
        """The record of every update: its decision and its cost."""
        return self.model.state.history

    @property
    def held_out(self) -> HeldOut:
        """Held-out images: they measure updates and are never trained on."""
        return self.model.state.held_out

    @property
    def familiarities(self) -> Tensor:
        """Familiarity of the held-out images (n,), ascending."""
        return self.recogniser.familiarities

    @property
    def recogniser(self) -> Recogniser:
        """The score of unknown images, calibrated on the held-out images."""
        return self.model.state.recogniser

    @property
    def version(self) -> int | None:
        """Number of the version that is loaded; ``None``: the learner is not saved."""
        return self.model.state.version

    @classmethod
    def create(
        cls,
        experiment: str | ExperimentSettings = "folder",
        overrides: Sequence[str] = (),
        *,
        shape: tuple[int, int, int],
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        directory: str | Path | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Create a learner that has not learnt anything yet.

        Args:
            experiment: settings, or the name or path of an experiment.
            overrides: ``key.path=value`` texts over a named experiment.
            shape: (C, H, W) of every image; C is 1 or 3.
            mean: normalisation constants per channel; ``None``: those of the backbone (its setting,
                or its pre-training), else ImageNet's.
            std: likewise.
            directory: home to create; ``None``: the learner lives in memory.
            progress: receives the events of the work.

        Raises:
            GraceError: for settings that cannot be used, or a directory that is not empty.
        """
        settings = load_experiment(experiment, overrides)
        learner = cls(new_model(settings, shape, mean, std, progress))
        if directory is not None:
            learner.home = ModelStore.create(Path(directory), learner.model.creation)
        return learner

    @classmethod
    def load(
        cls,
        directory: str | Path,
        version: int | None = None,
        *,
        engine: EngineSettings | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Load a saved learner; it continues as if it had never stopped.

        Args:
            directory: its home.
            version: number of a version; ``None``: the version in use.
            engine: how work is carried out on this machine; ``None``: the saved settings, adapted
                to what this machine has.
            progress: receives the events of the work.

        Raises:
            GraceError: if there is no such learner or version, or it was made by a newer grace.
            DamagedError: if its files cannot be trusted.
        """
        store = ModelStore.open(Path(directory))
        learner = cls(store.steadily(lambda: versions.load(store, version, engine, progress)))
        learner.home = store
        return learner

    @classmethod
    def from_run(cls, directory: str | Path, progress: Progress | None = None) -> Self:
        """Make a learner of a run whose state was kept: it knows what the run has learnt.

        Args:
            directory: of the run, made with ``keep=True`` or ``grace run --keep``.
            progress: receives the events of the work.

        Raises:
            GraceError: if no state was kept there.
            DamagedError: if it cannot be trusted.
        """
        return cls(model_of_run(Path(directory), progress))

    def save(self, directory: str | Path) -> int:
        """Save this learner as version 1 of a new home, put it in use, and return its number.

        Raises:
            GraceError: if nothing has been learnt, the directory exists already, or the learner
                has another home, which is where its updates are saved.
        """
        path = Path(directory)
        self._refuse_ignorance()
        if self.home is not None and self.version is not None:
            if self.home.path.resolve() == path.resolve():
                return self.version
            raise GraceError(
                f"this learner lives in '{self.home.path}'", "copy that directory to have it twice"
            )
        home = ModelStore.create(path, self.model.creation)
        with home.changing():
            versions.save(self.model, home, digest=None)
        self.home = home
        assert self.version is not None
        return self.version

    def keep_within(self, max_disk_mb: float) -> Sequence[int]:
        """Remove the oldest versions until the home takes at most so many megabytes; return which.

        The version in use stays, and the one before it as long as possible.

        Args:
            max_disk_mb: megabytes (10⁶ bytes) of all versions together; fewer keep fewer versions.
        """
        return self._at_home().prune(max_mb=max_disk_mb)

    def rollback(self, version: int) -> None:
        """Put another version of the home in use, and load it with its settings.

        Raises:
            GraceError: without a home, or if there is no such version.
        """
        home, trainer = self._at_home(), self.model.trainer
        with home.changing():
            model = versions.load(
                home, version, self.settings.engine, trainer.progress, trainer.ranks
            )
            home.roll_back(version)
        self.model = model

    def change_settings(self, *overrides: str) -> Sequence[SettingChange]:
        """Change settings of this learner, such as its ceiling; with a home, save a new version.

        What it has learnt stays, and so do its predictions. Images that no longer fit are dropped:
        exemplars in herding order, the last ones first. A larger memory is filled by later updates.

        Args:
            *overrides: ``key.path=value`` texts, such as ``"memory.max_mb=8"``; see
                ``grace.learner.setting_changes`` for the settings that cannot change.

        Returns:
            What changed; empty: everything was so already, and no version was made.

        Raises:
            GraceError: if a setting is wrong or cannot change, if nothing has been learnt yet, or
                the ceiling is too low; then the message names one that is enough.
            TypeError: for anything but texts.
        """
        self._refuse_ignorance()
        whose = f"'{self.home.path}'" if self.home else "this learner"
        model = with_changes(self.model, overrides, whose)
        changes = differences(self.settings, model.settings)
        if changes:
            if self.home is not None:
                versions.save_settings(model, self.home)
            self.model = model
        return changes

    def update(
        self,
        images: AnyImages,
        labels: Sequence[str],
        *,
        validation: tuple[AnyImages, Sequence[str]] | None = None,
        max_drop: float | None = None,
        is_last: bool = False,
        again: bool = False,
    ) -> UpdateRecord:
        """Learn images of new classes, and more images of known classes.

        New classes get the next indices in order of first appearance. If anything fails, the
        learner stays as it was. With a home, an interrupted update goes on where it stopped, and
        the learner's last update is not repeated.

        Args:
            images: paths, PIL images or uint8 pixels, (N, C, H, W) or (N, H, W, C); one or many.
            labels: N class names.
            validation: images to hold out, and their class names; ``None``: some of ``images``
                are held out. ``memory.validation`` says how many of each class.
            max_drop: percentage points of accuracy that classes known before may lose on their
                held-out images; an update that costs more is kept as a rejected version, and the
                learner stays as it was. ``None``: the setting ``gate.max_drop``.
            is_last: the stream ends with this update (joint training waits for it).
            again: learn the images again even if this was the learner's last update.

        Returns:
            The decision and the cost; ``accepted`` is ``True`` if the update is in use.

        Raises:
            GraceError: for images of another shape, too few classes, a memory too small, a ceiling
                too low, or a loss that is not finite.
        """
        given = check_input(
            images,
            labels,
            validation,
            self.shape,
            gate=limits(self.settings, max_drop),
            is_last=is_last,
            settings=self.settings.data,
        )
        if self.home is None:
            return update.learn(self.model, given)
        return versions.learn(self.model, self.home, given, again=again)

    def forget(self, name: str) -> None:
        """Forget a class: drop its images from every version of the home, and never predict it.

        Its index stays, and the weights are not unlearnt: what they know of the class is hidden,
        not gone. Later images of that name revive it. A version that has no class left can no
        longer be loaded.

        Raises:
            GraceError: if no version has this class, it is the last class of this learner, or an
                update of the home was interrupted.
        """
        live = self.model.state.live_class_names
        unfinished = self.home.finish() if self.home else None
        versions = self.home.knowing(name) if self.home else []
        if name not in live and not versions and not (unfinished and unfinished.class_name == name):
            raise GraceError(f"this learner has no class '{name}'{did_you_mean_one_of(name, live)}")
        if live == [name]:
            raise GraceError(
                f"'{name}' is the last class of this learner", "teach it another first"
            )
        if self.home and versions:
            with self.home.changing():
                self.home.purge(name)
        if name in live:
            self.model.hide({self.class_names.index(name)})

    def size(self) -> Size:
        """Count the network's backbones, parameters and bytes; all 0 before the first update."""
        return self.model.size()

    def scores(self, images: AnyImages) -> dict[str, Tensor]:
        """Score images with every predictor: (N, K) by name, the primary predictor first."""
        with self._naming_home():
            return self.model.scores(images)

    def decision_function(self, images: AnyImages) -> Tensor:
        """Score images with the primary predictor, (N, K); a forgotten class scores -10⁴.

        The scores are divided by the predictor's temperature: their softmax is calibrated.

        Raises:
            GraceError: before the first update.
        """
        return self.recognise(images)[0]

    def predict_proba(self, images: AnyImages) -> Tensor:
        """Return class probabilities (N, K): the softmax of ``decision_function``.

        Raises:
            GraceError: before the first update.
        """
        return self.decision_function(images).softmax(dim=1)

    def predict(self, images: AnyImages) -> list[str]:
        """Return the class name of each of N images; of one image, a list of one name."""
        return [self.class_names[int(i)] for i in self.predict_proba(images).argmax(dim=1)]

    def unknown(self, images: AnyImages, false_alarms: float = 0.05) -> list[bool]:
        """Return ``True`` for each of N images that is unlike anything learnt.

        At most a share ``false_alarms`` of the images of learnt classes is called unknown.

        Raises:
            GraceError: if too few images are held out to promise that.
        """
        return (self.recognise(images)[1] < self.recogniser.cutoff(false_alarms)).tolist()

    def recognise(self, images: AnyImages) -> tuple[Tensor, Tensor]:
        """Return the scores (N, K) of ``decision_function``, and how familiar images look (N,).

        Raises:
            GraceError: before the first update.
        """
        self._refuse_ignorance()
        with self._naming_home():
            return self.model.recognise(images)

    def answerer(self) -> Answerer:
        """Return what ``predict_files`` asks about image files.

        Raises:
            GraceError: before the first update.
        """
        self._refuse_ignorance()

        def answer(pixels: Pixels) -> tuple[Numbers, Numbers]:
            scores, familiarities = self.recognise(torch.from_numpy(pixels).permute(0, 3, 1, 2))
            return scores.softmax(dim=1).numpy(), familiarities.numpy()

        return Answerer(
            class_names=self.class_names,
            forgotten=self.forgotten,
            shape=self.shape,
            fit=self.settings.data.fit,
            max_pixels=self.settings.data.max_pixels,
            familiarities=self.familiarities,
            answer=answer,
        )

    def score(self, images: AnyImages, labels: Sequence[str]) -> float:
        """Return the share of images that are predicted as their label, in [0, 1]."""
        predictions = self.predict(images)
        names = as_labels(labels, len(predictions))
        return sum(p == name for p, name in zip(predictions, names, strict=True)) / len(names)

    def export(self, path: str | Path, *, replace: bool = False) -> Exported:
        """Write the primary predictor as an ONNX file, and check it on images that are kept.

        Args:
            path: file to write; its folder must exist.
            replace: replace an existing file.

        Raises:
            GraceError: before the first update, if the file exists, or if it cannot be exported.
        """
        self._refuse_ignorance()
        return export_checked(self.model, Path(path), replace=replace)

    def card(self) -> str:
        """Return the model card of the loaded version, in Markdown; it needs a home."""
        return card_of(self._at_home(), self.version)

    def recall(self, images: AnyImages, labels: Sequence[str]) -> None:
        """Give a loaded learner all its training images again; they are not saved with it.

        Only methods that keep all images need them. Held-out images and images of forgotten classes
        are left out.
        """
        self.model.recall(images, labels)

    @contextmanager
    def _naming_home(self) -> Iterator[None]:
        """Add the home's path to errors."""
        try:
            yield
        except GraceError as error:
            if self.home:
                error.found_in(f"'{self.home.path}'")
            raise

    def _at_home(self) -> ModelStore:
        if self.home is None:
            raise GraceError("this learner has no home", "save it into a directory first")
        return self.home

    def _refuse_ignorance(self) -> None:
        if not self.method.classifiers():
            where = f" in '{self.home.path}'" if self.home else ""
            raise GraceError(f"nothing has been learnt yet{where}", "call update first")
