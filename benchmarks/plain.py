"""GRACE written plainly, as PyTorch code in this field usually is: what ours is timed against.

PIL transforms per image, a ``DataLoader`` whose worker processes start anew each epoch, the default
(contiguous) layout, ``loss.item()`` every step, teacher and student each computing every one of
their own backbones, and the test set of the seen classes evaluated every five epochs. Nothing here
comes from ``grace``: the same protocol was written a second time, from the method's description.

Verdicts are pinned, so that two implementations do the same work; the saturation of the mergeable
backbone is still measured after Grow, on the new images and the exemplars without augmentation.

Shapes: N images of H×W pixels, B in a batch, K classes, b backbones of d = 64 features.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypedDict, final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from typing_extensions import override

from plain_network import Network, ResNet, Stopwatch, align, make_head, merged

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Batch = tuple[Tensor, Tensor]
Loader = DataLoader[tuple[Tensor, int]]


class PlainResult(TypedDict):
    """What a run gives.

    ``accuracies`` are percent on all seen classes after each task; ``saturations`` and
    ``merge_weights`` belong to tasks 2 to T (``None`` where the network grew); ``losses`` are the
    mean loss of every epoch of every phase; ``parameters`` counts backbones without heads.

    ``seconds`` has the parts ``data`` (waiting for the loader), ``frozen`` (forward of what does
    not train), ``training`` (the rest of the steps), ``assess``, ``evaluation``, ``herding`` and
    ``total``. On a GPU the parts are approximate: kernels run behind the clock and are waited for
    at ``loss.item()``, within ``training``, and at the ends of phases.
    """

    accuracies: list[float]
    saturations: list[float]
    merge_weights: list[float | None]
    losses: list[float]
    backbones: int
    parameters: int
    seconds: dict[str, float]


@final
@dataclass(frozen=True, kw_only=True)
class PlainRecipe:
    """Epochs and optimiser of the three phases, with the published values as defaults.

    Milestones are epochs; ``None`` keeps the published share of the phase (60/120/170 of 200 and
    80/120/150 of 170). ``alpha`` and ``beta`` weigh logit and feature distillation.
    """

    base_epochs: int = 200
    grow_epochs: int = 170
    compress_epochs: int = 130
    base_milestones: Sequence[int] | None = None
    grow_milestones: Sequence[int] | None = None
    batch_size: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    base_weight_decay: float = 5e-4
    weight_decay: float = 2e-4
    alpha: float = 0.4
    beta: float = 1.6
    temperature: float = 2.0
    gamma: float = 5.0
    evaluate_every: int = 5
    eval_batch_size: int = 128
    depth: int = 32
    mean: tuple[float, float, float] = (0.5071, 0.4867, 0.4408)
    std: tuple[float, float, float] = (0.2675, 0.2565, 0.2761)


@final
class PILDataset(Dataset[tuple[Tensor, int]]):
    """Images that become PIL images and pass through torchvision's transforms one by one."""

    def __init__(self, images: Pixels, labels: Labels, transform: transforms.Compose) -> None:
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self) -> int:
        """Return the number of images N."""
        return len(self.images)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.transform(Image.fromarray(self.images[index]))
        return image, int(self.labels[index])


def saturation(features: npt.NDArray[np.float32]) -> float:
    """Normalised effective rank of features (N, d)."""
    values = np.linalg.svd(features - features.mean(axis=0), compute_uv=False)
    values = values[values > 1e-5]
    shares = values / values.sum()
    rank = np.exp(-(shares * np.log(shares + 1e-12)).sum())
    return float(rank / min(features.shape))


def herded(features: npt.NDArray[np.float32], quota: int) -> list[int]:
    """Pick up to ``quota`` rows whose running mean stays nearest to the mean of all (N, d)."""
    vectors = features / (np.linalg.norm(features, axis=1, keepdims=True) + 1e-8)
    mean, total = vectors.mean(axis=0), np.zeros(vectors.shape[1], dtype=np.float32)
    chosen: list[int] = []
    for k in range(1, min(quota, len(vectors)) + 1):
        distances = np.linalg.norm(mean - (total + vectors) / k, axis=1)
        distances[chosen] = np.inf
        chosen.append(int(distances.argmin()))
        total = total + vectors[chosen[-1]]
    return chosen


@final
class PlainGrace:
    """Learns task after task; the order of work is the paper's Algorithm 1."""

    def __init__(
        self,
        recipe: PlainRecipe,
        base: int,
        memory_size: int,
        device: torch.device,
        num_workers: int,
    ) -> None:
        self.recipe, self.memory_size = recipe, memory_size
        self.device, self.num_workers = device, num_workers
        self.watch = Stopwatch(device)
        self.network = Network([ResNet(recipe.depth)], make_head(64, base)).to(device)
        self.memory: list[Pixels] = []
        self.classes_per_backbone: list[int] = []
        self.merge_weights: list[float | None] = []
        self.saturations: list[float] = []
        self.losses: list[float] = []
        self.num_old = self.num_seen = 0

    def learn(
        self, images: Pixels, labels: Labels, num_new: int, verdict: str, test: PILDataset
    ) -> None:
        """Learn one task from its own images (N, H, W, 3); ``test`` is for the logged accuracy."""
        self.num_old, self.num_seen = self.num_seen, self.num_seen + num_new
        kept = [np.full(len(part), index) for index, part in enumerate(self.memory)]
        together = np.concatenate([images, *self.memory])
        every = np.concatenate([labels, *kept]).astype(np.int64)
        data = PILDataset(together, every, self.train_transform(together.shape[1]))
        if verdict == "base":
            self.train_base(data, test)
            self.classes_per_backbone = [num_new]
        else:
            self.expand()
            self.grow(data, test)
            align(self.network.head, num_new)
            self.saturations.append(self.assess(data))
            if verdict == "compress":
                self.compress(data, test, len(images) // num_new)
                align(self.network.head, num_new)
            else:
                self.classes_per_backbone.append(num_new)
                self.merge_weights.append(None)
        self.update_memory(images, labels)

    def expand(self) -> None:
        """Add a copy of the last backbone and grow the head."""
        backbones = list(self.network.backbones)
        backbones.append(copy.deepcopy(backbones[-1]).requires_grad_(True))
        old = self.network.head
        head = make_head(64 * len(backbones), self.num_seen).to(self.device)
        with torch.no_grad():
            head.weight[: self.num_old, : old.in_features] = old.weight
            head.bias[: self.num_old] = old.bias
        self.network = Network(backbones, head).to(self.device)

    def train_base(self, data: PILDataset, test: PILDataset) -> None:
        """First task: cross-entropy."""
        recipe, network = self.recipe, self.network
        optimiser = self.optimiser([network], recipe.base_weight_decay)
        marks = recipe.base_milestones
        if marks is None:
            marks = [round(recipe.base_epochs * share) for share in (0.3, 0.6, 0.85)]
        scheduler = MultiStepLR(optimiser, list(marks), gamma=0.1)
        loader = self.loader(data, shuffle=True)
        for epoch in range(recipe.base_epochs):
            network.train()
            total = 0.0
            for images, labels in self.batches(loader):
                loss = F.cross_entropy(network(images), labels)
                total += self.step(optimiser, loss)
            self.losses.append(total / len(loader))
            self.close_epoch(epoch, scheduler, network, test)
        self.watch.phase_end("training")

    def grow(self, data: PILDataset, test: PILDataset) -> None:
        """Grow: train the provisional backbone, the head and an auxiliary head."""
        recipe, network = self.recipe, self.network
        auxiliary = make_head(64, self.num_seen - self.num_old + 1).to(self.device)
        network.train_last()
        optimiser = self.optimiser([network, auxiliary], recipe.weight_decay)
        marks = recipe.grow_milestones
        if marks is None:
            marks = [round(recipe.grow_epochs * part / 170) for part in (80, 120, 150)]
        scheduler = MultiStepLR(optimiser, list(marks), gamma=0.1)
        loader = self.loader(data, shuffle=True)
        for epoch in range(recipe.grow_epochs):
            network.train_last()
            total = 0.0
            for images, labels in self.batches(loader):
                features = network.features(images, self.watch)
                loss = F.cross_entropy(network.logits(features), labels)
                auxiliary_labels = (labels - self.num_old + 1).clamp(min=0)
                loss = loss + F.cross_entropy(auxiliary(features[-1]), auxiliary_labels)
                total += self.step(optimiser, loss)
            self.losses.append(total / len(loader))
            self.close_epoch(epoch, scheduler, network, test)
        self.watch.phase_end("training")

    def compress(self, data: PILDataset, test: PILDataset, n_new: int) -> None:
        """Compress: distil the expanded network into one with a backbone fewer."""
        recipe, teacher = self.recipe, self.network.eval().requires_grad_(False)
        student = self.student(teacher, n_new)
        projection = nn.Linear(64, 128).to(self.device)
        optimiser = self.optimiser([student, projection], recipe.weight_decay)
        scheduler = CosineAnnealingLR(optimiser, T_max=recipe.compress_epochs)
        loader = self.loader(data, shuffle=True)
        for epoch in range(recipe.compress_epochs):
            student.train_last()
            total = 0.0
            for images, labels in self.batches(loader):
                with torch.no_grad():
                    teacher_features = teacher.features(images)
                    teacher_logits = teacher.logits(teacher_features)
                self.watch.lap("frozen")
                features = student.features(images, self.watch)
                logits = student.logits(features)
                target = torch.cat(teacher_features[-2:], dim=1)
                matching = F.mse_loss(projection(features[-1]), target)
                loss = self.compress_loss(logits, teacher_logits, matching, labels)
                total += self.step(optimiser, loss)
            self.losses.append(total / len(loader))
            self.close_epoch(epoch, scheduler, student, test)
        self.network = student
        self.watch.phase_end("training")

    def student(self, teacher: Network, n_new: int) -> Network:
        """Copy the fixed backbones, merge the last two by importance, and make a fresh head."""
        mergeable, provisional = self.classes_per_backbone[-1], self.num_seen - self.num_old
        n_old = sum(len(part) for part in self.memory) // self.num_old
        preservation = mergeable / (mergeable + provisional)
        bias = n_new / (n_new + n_old)
        gamma = self.recipe.gamma
        weight = ((preservation**gamma + bias**gamma) / 2) ** (1 / gamma)
        self.merge_weights.append(weight)
        self.classes_per_backbone[-1] += provisional
        fixed = [copy.deepcopy(backbone) for backbone in teacher.backbones[:-2]]
        last = merged(teacher.backbones[-2], teacher.backbones[-1], weight)
        student = Network([*fixed, last], make_head(64 * (len(fixed) + 1), self.num_seen))
        student.to(self.device).train_last()
        return student

    def compress_loss(
        self, logits: Tensor, teacher_logits: Tensor, matching: Tensor, labels: Tensor
    ) -> Tensor:
        """Combine λ(α·KL + β·MSE) + (1 − λ)·CE with λ = K_old/K."""
        recipe, temperature = self.recipe, self.recipe.temperature
        divergence = temperature**2 * F.kl_div(
            F.log_softmax(logits / temperature, dim=1),
            F.softmax(teacher_logits / temperature, dim=1),
            reduction="batchmean",
        )
        share = self.num_old / self.num_seen
        distillation = recipe.alpha * divergence + recipe.beta * matching
        return share * distillation + (1 - share) * F.cross_entropy(logits, labels)

    def assess(self, data: PILDataset) -> float:
        """Measure the saturation of the mergeable backbone, the last but one, on ``data``."""
        plain = PILDataset(data.images, data.labels, self.test_transform())
        features = self.extract(self.network.backbones[-2], plain)
        score = saturation(features)
        self.watch.phase_end("assess")
        return score

    def update_memory(self, images: Pixels, labels: Labels) -> None:
        """Shorten the old classes' exemplars and herd those of the new classes."""
        quota = self.memory_size // self.num_seen
        self.memory = [part[:quota] for part in self.memory]
        for index in range(self.num_old, self.num_seen):
            own = images[labels == index]
            data = PILDataset(own, labels[labels == index], self.test_transform())
            self.memory.append(own[herded(self.extract(self.network, data), quota)])
        self.watch.phase_end("herding")

    @torch.no_grad()
    def extract(self, module: nn.Module, data: PILDataset) -> npt.NDArray[np.float32]:
        """Compute features (N, D) in eval mode and dataset order."""
        module.eval()
        parts = []
        for images, _ in self.loader(data, shuffle=False):
            found = images.to(self.device)
            if isinstance(module, Network):
                found = torch.cat(module.features(found), dim=1)
            else:
                found = module(found)
            parts.append(found.cpu().numpy())
        return np.concatenate(parts)

    @torch.no_grad()
    def accuracy(self, network: Network, test: PILDataset) -> float:
        """Compute the accuracy in percent on the test images of all seen classes."""
        network.eval()
        correct = 0
        for images, labels in self.loader(test, shuffle=False):
            predicted = network(images.to(self.device)).argmax(dim=1).cpu()
            correct += int((predicted == labels).sum())
        self.watch.lap("evaluation")
        return 100.0 * correct / len(test)

    def close_epoch(
        self, epoch: int, scheduler: LRScheduler, network: Network, test: PILDataset
    ) -> None:
        """Step the schedule and, every few epochs, evaluate for the log."""
        scheduler.step()
        self.watch.lap("training")
        if (epoch + 1) % self.recipe.evaluate_every == 0:
            self.accuracy(network, test)

    def batches(self, loader: Loader) -> Iterator[Batch]:
        """Go through a loader, giving the time spent waiting for it to ``data``."""
        self.watch.lap("training")
        for images, labels in loader:
            self.watch.lap("data")
            yield images.to(self.device), labels.to(self.device)
        self.watch.lap("data")

    def step(self, optimiser: torch.optim.Optimizer, loss: Tensor) -> float:
        """Take one optimiser step and return the loss as a number."""
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        value = loss.item()
        self.watch.lap("training")
        return value

    def optimiser(self, modules: Sequence[nn.Module], weight_decay: float) -> torch.optim.SGD:
        """Make SGD over all parameters that train."""
        parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
        return torch.optim.SGD(
            parameters, self.recipe.lr, self.recipe.momentum, weight_decay=weight_decay
        )

    def loader(self, data: PILDataset, shuffle: bool) -> Loader:
        """Make a loader with worker processes, shuffled for training, in order otherwise."""
        recipe = self.recipe
        size = recipe.batch_size if shuffle else recipe.eval_batch_size
        return DataLoader(data, batch_size=size, shuffle=shuffle, num_workers=self.num_workers)

    def train_transform(self, side: int) -> transforms.Compose:
        """Crop with padding 4, flip, brightness, tensor, normalise."""
        return transforms.Compose(
            [
                transforms.RandomCrop(side, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ColorJitter(brightness=63 / 255),
                transforms.ToTensor(),
                transforms.Normalize(self.recipe.mean, self.recipe.std),
            ]
        )

    def test_transform(self) -> transforms.Compose:
        """Tensor, normalise."""
        return transforms.Compose(
            [transforms.ToTensor(), transforms.Normalize(self.recipe.mean, self.recipe.std)]
        )


def run_plain(
    train_images: Pixels,
    train_labels: Labels,
    test_images: Pixels,
    test_labels: Labels,
    task_sizes: Sequence[int],
    verdicts: Sequence[str],
    recipe: PlainRecipe,
    memory_size: int,
    seed: int,
    device: str | torch.device,
    num_workers: int = 2,
) -> PlainResult:
    """Run GRACE over a stream of tasks with pinned verdicts.

    Args:
        train_images: uint8 (N, H, W, 3).
        train_labels: class indices (N,), positions in the class order.
        test_images: uint8 (M, H, W, 3).
        test_labels: class indices (M,).
        task_sizes: number of new classes of each of the T tasks.
        verdicts: "grow" or "compress" for each of the tasks 2 to T.
        recipe: epochs and optimiser.
        memory_size: exemplars in all; each class gets ``memory_size // classes seen``.
        seed: seed of torch's global generator, from which everything is drawn.
        device: where to train.
        num_workers: processes of every loader.

    Returns:
        Accuracies, sizes and seconds (see ``PlainResult``).

    Raises:
        ValueError: if there is not one known verdict for each task after the first.
    """
    if len(verdicts) != len(task_sizes) - 1 or set(verdicts) - {"grow", "compress"}:
        raise ValueError(
            f"verdicts {list(verdicts)} must be 'grow' or 'compress', one for each of the "
            f"{len(task_sizes) - 1} tasks after the first"
        )
    torch.manual_seed(seed)
    start = perf_counter()
    learner = PlainGrace(recipe, task_sizes[0], memory_size, torch.device(device), num_workers)
    accuracies = []
    for num_new, verdict in zip(task_sizes, ["base", *verdicts], strict=True):
        first = learner.num_seen
        own = np.flatnonzero((train_labels >= first) & (train_labels < first + num_new))
        own = own[np.argsort(train_labels[own], kind="stable")]  # class by class
        seen = test_labels < first + num_new
        test = PILDataset(test_images[seen], test_labels[seen], learner.test_transform())
        learner.learn(train_images[own], train_labels[own], num_new, verdict, test)
        accuracies.append(learner.accuracy(learner.network, test))
    backbones = learner.network.backbones
    return {
        "accuracies": accuracies,
        "saturations": learner.saturations,
        "merge_weights": learner.merge_weights,
        "losses": learner.losses,
        "backbones": len(backbones),
        "parameters": sum(parameter.numel() for parameter in backbones.parameters()),
        "seconds": {**learner.watch.seconds, "total": perf_counter() - start},
    }
