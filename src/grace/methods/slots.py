"""Slots: each holds one network, module or group of tensors that a method saves.

Shapes: D features of all backbones together, K classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Generic, TypeVar, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.base.errors import DamagedError
from grace.methods.module_factory import ModuleFactory, Outline
from grace.nn.expandable import ExpandableNetwork
from grace.nn.weights import refuse_unlike

Parts = Mapping[str, Mapping[str, Tensor]]
"""Tensors by name, in groups that change together: a backbone, a head."""
T = TypeVar("T")


class Slot(ABC, Generic[T]):
    """Holds one thing that a method saves; ``value`` is ``None`` while the slot is empty."""

    comes_later = False
    """True if the slot is still empty after the first task."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.value: T | None = None

    @abstractmethod
    def parts(self) -> Parts:
        """Return the value's tensors by name, of any shape; they are its own, not copies."""

    @abstractmethod
    def outline(self, network: Outline) -> Parts:
        """Return meta tensors of the shapes that the value has beside a network of this form."""

    @abstractmethod
    def made(self, network: Outline, factory: ModuleFactory) -> T:
        """Make a value of these shapes on the device; its numbers do not matter."""

    def saved_beside(self, parts: Parts, network: Outline) -> Outline | None:
        """Return the form of the network beside which ``parts`` hold this slot's value, if any."""
        return network

    def take(self, parts: dict[str, Mapping[str, Tensor]], network: Outline | None) -> Parts:
        """Remove this slot's tensors from those that were saved; refuse any that do not fit.

        Nothing is made: the settings of a stranger's file may ask for any width.

        Args:
            parts: saved tensors by name, of any shape, maybe on the meta device; changed.
            network: form of the method's network; ``None`` if it has no network yet.

        Returns:
            The slot's own tensors; empty if its value was not saved.

        Raises:
            DamagedError: if the tensors do not fit this slot.
        """
        form = network and self.saved_beside(parts, network)
        taken: dict[str, Mapping[str, Tensor]] = {}
        for part, tensors in self.outline(form).items() if form else ():
            what = part.replace("_", " ").replace("backbone.", "backbone ")
            if part not in parts:
                raise DamagedError(f"the saved method lacks the {what} of its network")
            saved = parts.pop(part)
            refuse_unlike(tensors, saved, what)
            taken[part] = {name: saved[name] for name in tensors}
        return taken

    @torch.no_grad()
    def restore(
        self,
        parts: dict[str, Mapping[str, Tensor]],
        network: Outline | None,
        factory: ModuleFactory,
    ) -> None:
        """Make the value from saved tensors; arguments and errors are those of ``take``."""
        form = network and self.saved_beside(parts, network)
        self.value, saved = None, self.take(parts, network)
        if form:
            self.value = self.made(form, factory)
            for part, own in self.parts().items():
                for name, tensor in own.items():
                    tensor.copy_(saved[part][name])

    def mask(self, classes: Collection[int]) -> None:
        """Hide these class indices and no others."""
        return


@final
class NetworkSlot(Slot[ExpandableNetwork]):
    """Holds a network of backbones like the learner's own and one head.

    Args:
        name: prefix of its parts' names.
        num_more: how many more backbones it has than the method's network. With one or more, the
            slot is still empty after the first task.
    """

    def __init__(self, name: str, num_more: int = 0) -> None:
        super().__init__(name)
        self.comes_later = num_more > 0
        self._num_more = num_more

    @override
    def parts(self) -> Parts:
        parts = {} if self.value is None else self.value.parts()
        return {f"{self.name}{part}": tensors for part, tensors in parts.items()}

    @override
    def outline(self, network: Outline) -> Parts:
        own = network.with_more(self._num_more)
        return {f"{self.name}{part}": tensors for part, tensors in own.parts().items()}

    @override
    def made(self, network: Outline, factory: ModuleFactory) -> ExpandableNetwork:
        count = network.num_backbones + self._num_more
        return factory.network(count, network.head.num_classes)

    @override
    def saved_beside(self, parts: Parts, network: Outline) -> Outline | None:
        count = sum(part.startswith(f"{self.name}backbone.") for part in parts)
        own = max(count - self._num_more, 1)
        return network.with_more(own - network.num_backbones) if count else None

    @override
    def mask(self, classes: Collection[int]) -> None:
        if self.value is not None:
            self.value.head.mask(classes)


@final
class TensorsSlot(Slot[dict[str, Tensor]]):
    """Holds named tensors whose shapes follow from the network.

    Args:
        name: of the one part that they make.
        like: gives meta tensors of their shapes for a network of some form.
        is_needed: refuse a saved method that has a network but lacks these tensors.
        has_class_rows: row ``i`` of every tensor belongs to class index ``i``; the rows of
            forgotten classes are set to 0.
    """

    def __init__(
        self,
        name: str,
        like: Callable[[Outline], Mapping[str, Tensor]],
        *,
        is_needed: bool = True,
        has_class_rows: bool = False,
    ) -> None:
        super().__init__(name)
        self._like = like
        self._is_needed = is_needed
        self._has_class_rows = has_class_rows

    @override
    def parts(self) -> Parts:
        return {} if self.value is None else {self.name: self.value}

    @override
    def outline(self, network: Outline) -> Parts:
        return {self.name: self._like(network)}

    @override
    def made(self, network: Outline, factory: ModuleFactory) -> dict[str, Tensor]:
        device = factory.device.torch_device
        like = self._like(network)
        return {name: torch.empty_like(tensor, device=device) for name, tensor in like.items()}

    @override
    def saved_beside(self, parts: Parts, network: Outline) -> Outline | None:
        return network if self._is_needed or self.name in parts else None

    @override
    def mask(self, classes: Collection[int]) -> None:
        if self._has_class_rows and self.value is not None:
            for tensor in self.value.values():
                tensor[list(classes)] = 0


ModuleT = TypeVar("ModuleT", bound=nn.Module)


@final
class ModuleSlot(Slot[ModuleT]):
    """Holds a module whose shapes follow from the settings alone.

    Args:
        name: of the one part that its tensors make.
        make: makes a fresh module on the device. Give a plain function: a bound method would be
            copied with the method it belongs to.
        sketch: makes the module on the meta device, which takes no memory.
    """

    def __init__(
        self, name: str, make: Callable[[], ModuleT], sketch: Callable[[], nn.Module]
    ) -> None:
        super().__init__(name)
        self._make = make
        self._sketch = sketch

    @override
    def parts(self) -> Parts:
        return {} if self.value is None else {self.name: self.value.state_dict()}

    @override
    def outline(self, network: Outline) -> Parts:
        return {self.name: self._sketch().state_dict()}

    @override
    def made(self, network: Outline, factory: ModuleFactory) -> ModuleT:
        return self._make().eval().requires_grad_(False)
