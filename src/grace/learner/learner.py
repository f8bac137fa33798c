"""The learner: a method with its network, memory and class names, updated task by task."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self, final

from typing_extensions import override

from grace.configs.experiment import EngineSettings, ExperimentSettings
from grace.configs.load import load_experiment
from grace.configs.methods import AnyMethodSettings
from grace.data.arrays import imagenet_constants
from grace.engine.progress import Progress
from grace.home.document import Document, UpdateRecord
from grace.home.journal import Journal
from grace.home.store import ModelStore
from grace.learner import saving
from grace.learner.base import BaseLearner
from grace.learner.update_input import AnyImages, UpdateInput, check_input
from grace.text.refusals import GraceError


@final
class Learner(BaseLearner):
    """A classifier that learns new classes from their images alone.

    With a home, a directory, every update becomes a version there, and one that is interrupted
    goes on where it stopped when it is asked for again. Without one it lives in memory.

    Args:
        settings: method, backbone, memory, augmentation, seeds, engine; the scenario is not used.
        shape: (C, H, W) of every image.
        mean: normalisation constants per channel, of pixels in [0, 1].
        std: likewise.
        progress: told what happens.
        is_saved: whether it is about to become what was saved: its backbone is not tried before.
        ranks: the processes that teach it together, each a learner of its own with the same
            images; none for this one alone. Only the first one's may have a home.

    Examples:
        >>> learner = Learner.create("folder", shape=(3, 32, 32))  # doctest: +SKIP
        >>> learner.update(images, ["cat", "dog", ...])
        >>> learner.predict(images)
        >>> learner.save("pets")
        >>> Learner.load("pets").update(more_images, ["parrot", ...])
    """

    home: ModelStore | None = None
    _first_task: Path | None = None

    @property
    @override
    def place(self) -> Path | None:
        return self.home.path if self.home else None

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
        """Make a learner that knows nothing yet.

        Args:
            experiment: settings, or the name or path of an experiment that has them.
            overrides: ``key.path=value`` texts over a named experiment.
            shape: (C, H, W) of every image; C is 1 or 3.
            mean: normalisation constants per channel; none takes ImageNet's.
            std: likewise.
            directory: home to make; none keeps the learner in memory.
            progress: told what happens.

        Raises:
            ValueError: for settings that cannot be carried out, or a directory that is taken.
        """
        settings = experiment
        if isinstance(settings, str):
            settings = load_experiment(settings, overrides)
        means, deviations = imagenet_constants(1 if shape[0] == 1 else 3)
        learner = cls(settings, shape, mean or means, std or deviations, progress)
        if directory is not None:
            learner.home = ModelStore.create(Path(directory), learner._created_as)
        return learner

    @classmethod
    def load(
        cls,
        directory: str | Path,
        version: int | None = None,
        *,
        engine: EngineSettings | None = None,
        method: AnyMethodSettings | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Bring a saved learner back; it goes on as if it had never stopped.

        Args:
            directory: its home.
            version: number of a version; none takes the one in use.
            engine: how the work is carried out here; none takes the saved way as far as this
                machine can.
            method: the saved method's settings with other recipes, for updates to come; none
                leaves them.
            progress: told what happens.

        Raises:
            ValueError: if there is no such learner or version, it was made by a newer grace, or
                ``method`` is another method.
            DamagedError: if its files cannot be trusted.
        """
        home = ModelStore.open(Path(directory))
        number = home.current() if version is None else version
        saved = home.creation if number is None else home.document(number)
        settings = saving.carried_out_here(saved.settings, engine)
        if method is not None:
            settings = saving.with_recipes(settings, method)
        with saving.told_of(saved, home):
            learner = cls(settings, saved.shape, saved.mean, saved.std, progress, is_saved=True)
        if isinstance(saved, Document):
            learner._become(saved, home)
        learner.home = home
        return learner

    def save(self, directory: str | Path) -> int:
        """Save this learner as the next version of a home, made if need be, and put it in use.

        Returns:
            The version's number.

        Raises:
            ValueError: if nothing has been learnt, the directory is something else, or the
                learner has a home already, which is where its updates go.
        """
        path = Path(directory)
        self._refuse_ignorance()
        if self.home is not None and self.version is not None:
            if self.home.path.resolve() == path.resolve():
                return self.version
            raise GraceError(
                f"this learner lives in '{self.home.path}'", "copy that directory to have it twice"
            )
        home = ModelStore.create(path, self._created_as)
        with home.changing():
            self._write(home, accepted=True, digest=None)
        self.home = home
        assert self.version is not None
        return self.version

    def live_in(self, directory: str | Path) -> None:
        """Give a learner that knows nothing a home of its own, or go on with the one that is there.

        Raises:
            DamagedError: if the home's files cannot be trusted.
        """
        assert not self.history
        assert self.home is None
        path = Path(directory)
        if not (path / "model.json").exists():
            self.home = ModelStore.create(path, self._created_as)
            return
        self.home = ModelStore.open(path)
        with self.home.changing():
            self.home.put_newest_in_use()
            current = self.home.current()
            if current is not None:
                self._become(self.home.document(current), self.home)

    def share_first_task(self, folder: Path) -> None:
        """Share the network of the first task with all learners that are given this folder.

        Args:
            folder: made if need be. Whoever gives it sees to it that data, settings, seeds and
                versions of these learners agree in all that decides that network.
        """
        self._first_task = folder

    def become(self, directory: str | Path) -> None:
        """Become what a home has in use without living there: another process does.

        Raises:
            DamagedError: if the home's files cannot be trusted.
        """
        assert not self.history
        assert self.home is None
        home = ModelStore.open(Path(directory))
        current = home.current()
        if current is not None:
            self._become(home.document(current), home)

    def keep_versions(self, count: int) -> None:
        """Remove all but the newest versions from the home; the one in use stays."""
        home = self._home()
        with home.changing():
            home.prune(count)

    def rollback(self, version: int) -> None:
        """Put another version of the home in use, and become it.

        Raises:
            ValueError: without a home, or if there is no such version.
        """
        home = self._home()
        with home.changing():
            self._become(home.document(version), home)
            home.make_current(version)

    def update(
        self,
        images: AnyImages,
        labels: Sequence[str],
        *,
        validation: tuple[AnyImages, Sequence[str]] | None = None,
        max_drop: float | None = None,
        is_last: bool = False,
        again: bool = False,
        identity: str | None = None,
    ) -> UpdateRecord:
        """Learn images of new classes, and fresh images of known ones.

        New classes get the next indices in order of first appearance. When anything fails, the
        learner stays as it was. With a home, an update that was interrupted goes on where it
        stopped, and one that is already the learner's last is not repeated.

        Args:
            images: uint8, (N, C, H, W).
            labels: N class names.
            validation: images to hold out, and their class names; none holds some of ``images``
                out. ``memory.validation`` says how many of each class.
            max_drop: points of percent of accuracy that classes known before may lose on their
                held-out images; an update that costs more is kept as a rejected version, and the
                learner stays as it was.
            is_last: whether the stream is known to end here (joint training waits for it).
            again: repeat an update that is the learner's last.
            identity: tells this update from others where hashing its images would take long.

        Returns:
            What was decided and what it cost; ``accepted`` tells whether it is in use.

        Raises:
            ValueError: for images of another shape, too few classes, a memory too small, a ceiling
                too low, or a loss that is not finite.
        """
        given = check_input(
            images,
            labels,
            validation,
            self.shape,
            max_drop=max_drop,
            is_last=is_last,
            identity=identity,
        )
        if self.home is None:
            return self._learn(given, None)
        with self.home.changing():
            self._refuse_stale(self.home)
            repeats = again and not self.home.has_saved(given.digest)
            done = None if repeats else self._done_already(given, self.home)
            if done is None:
                journal = self.home.begin(self.version, given.digest)
                if self._first_task and not self.history:
                    journal.share(self._first_task, self.trainer)
                try:
                    done = self._learn(given, journal)
                except GraceError:
                    self.home.discard()  # The same would happen again.
                    raise
            self.home.discard()
            self.home.remove_unused()
        return done

    def forget(self, name: str) -> None:
        """Forget a class: drop its images from every version of the home, mask it in all of them.

        Its index stays, and the weights are not unlearnt: what they know of it is hidden, not
        gone. Later images of that name revive it. A version that has no class left can no longer
        be loaded.

        Raises:
            ValueError: if no version has such a class, it is this learner's last one, or an update
                of the home was interrupted.
        """
        live = [n for i, n in enumerate(self.class_names) if i not in self.forgotten]
        elsewhere = self.home.live_class_names() if self.home else set()
        if name not in {*live, *elsewhere}:
            raise GraceError(f"'{name}' is no class of this learner: it knows {', '.join(live)}")
        if live == [name]:
            raise GraceError(f"'{name}' is the last class left: a learner without classes is none")
        if self.home is not None:
            with self.home.changing():
                self.home.purge(name)
        if name in live:
            self._hide({self.class_names.index(name)})

    def _learn(self, given: UpdateInput, journal: Journal | None) -> UpdateRecord:
        """Carry an update out, save it where there is a home, and undo it if it is not wanted."""
        before = self._remember()
        try:
            update = self._carry_out(given, journal)
            self.history.append(update)
            if self._ceiling or self.home:
                update = update.model_copy(
                    update={"num_bytes": saving.describe(self._contents()).num_bytes}
                )
            # A gate that judged otherwise elsewhere would part the processes.
            update = self._agreed(update)
            self.history[-1] = update
            assert not self._ceiling or update.num_bytes <= self._ceiling.num_bytes
            if self.home is not None:
                self._write(self.home, accepted=update.accepted, digest=given.digest)
        except BaseException:
            self._restore(before)
            raise
        if not update.accepted:
            self._restore(before)
        return update

    def _agreed(self, own: UpdateRecord) -> UpdateRecord:
        """Hear what the first process says of the update."""
        ranks = self.trainer.ranks
        if not ranks.are_several:
            return own
        return UpdateRecord.model_validate_json(ranks.broadcast_value(own.model_dump_json()))

    def _refuse_stale(self, home: ModelStore) -> None:
        """Refuse to go on from what the home no longer has in use as this learner knows it."""
        number = home.current()
        forgotten = set() if number is None else set(home.document(number).forgotten)
        if (number, forgotten) != (self.version, self.forgotten):
            raise GraceError(
                f"'{home.path}' has changed since this learner was loaded", "load it again"
            )

    def _done_already(self, given: UpdateInput, home: ModelStore) -> UpdateRecord | None:
        """Find this very update among the versions: it was saved, then the process was killed."""
        numbers = home.numbers()
        newest = home.document(numbers[-1]) if numbers else None
        if newest is None or newest.digest != given.digest:
            return None
        if not set(given.labels) <= set(newest.live_class_names):
            return None  # It was learnt, and forgotten since.
        update = newest.history[-1]
        if newest.number == self.version:
            return update
        if newest.parent != self.version:
            return None
        if newest.status == "accepted":
            home.make_current(newest.number)
            self._become(newest, home)
        return update

    def _write(self, home: ModelStore, *, accepted: bool, digest: str | None) -> None:
        """Add this learner to its home; an accepted one is put in use."""
        number = home.next_number()
        status: Literal["accepted", "rejected"] = "accepted" if accepted else "rejected"
        home.write(
            saving.to_document(
                self._contents(), home.put, number=number, status=status, digest=digest
            )
        )
        if accepted:
            home.make_current(number)
        self.version = number

    def _become(self, document: Document, home: ModelStore) -> None:
        """Take over everything that a version holds; on failure this learner is as it was."""
        if not document.live_class_names:
            raise GraceError(
                f"all classes of version {document.number} of '{home.path}' were forgotten",
                "choose another version",
            )
        if document.shape != self.shape:
            raise GraceError(
                f"version {document.number} of '{home.path}' takes images of shape "
                f"{document.shape}, this learner those of {self.shape}"
            )
        saving.refuse_too_large(document, home)
        state = saving.read_state(document, home)
        exemplars, held_out = saving.read_images(document, home)
        familiarities = saving.read_familiarities(document, home)
        before = self._remember()
        try:
            with saving.told_of(document, home):
                self.method.kept.restore(state, len(document.class_names))
                self.method.kept.refuse_unfit(document.shape)
            self.method.memory.restore(exemplars, document.original_counts)
            self.class_names = list(document.class_names)
            self.history = list(document.history)
            self.held_out = held_out
            self.familiarities = familiarities
            self.forgotten = set(document.forgotten)
            self._mask_forgotten()
            if document.calibration is None:
                self.familiarities = self._calibrated()
        except BaseException:
            self._restore(before)
            raise
        self.version = document.number

    def _home(self) -> ModelStore:
        if self.home is None:
            raise GraceError("this learner has no home", "save it into a directory first")
        return self.home
