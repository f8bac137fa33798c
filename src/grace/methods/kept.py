"""What a method keeps between tasks, declared once.

A method names its networks, tensors, modules and small values when it is made. Saving, loading,
checking what is loaded, counting bytes ahead of time and masking forgotten classes follow from
that: no method does any of it itself.

Shapes: D features of all backbones together, K classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn
from typing_extensions import override

from grace.methods.module_factory import ModuleFactory, Outline
from grace.networks.expandable import ExpandableNetwork
from grace.networks.loading import load_exactly, load_tensors, refuse_unlike
from grace.storage.tensors import encoded_size
from grace.text.refusals import DamagedError

Parts = Mapping[str, Mapping[str, Tensor]]
"""Tensors by name, in groups that change together: a backbone, a head."""
T = TypeVar("T")
ValuesT = TypeVar("ValuesT", bound="Values")


class Values(BaseModel):
    """Small facts that a method keeps: a model with a default for each, changed by assignment."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_assignment=True)

    def problem(self, num_backbones: int, num_classes: int) -> str | None:
        """Say what is wrong with these values beside such a network; none if nothing is."""
        return None


@final
@dataclass(frozen=True)
class MethodState:
    """All that a method must find again to go on as if it had never stopped, but its exemplars.

    Args:
        values: small facts that JSON can hold.
        parts: tensors by name, in groups that change together.
    """

    values: Mapping[str, Any]
    parts: Parts


class Place(ABC, Generic[T]):
    """A named place for one thing that a method keeps; empty until it has a value."""

    comes_later = False
    """Whether a first task leaves it empty."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.value: T | None = None

    @abstractmethod
    def parts(self) -> Parts:
        """Return the tensors of the value; the tensors are its own, not copies."""

    @abstractmethod
    def outline(self, network: Outline) -> Parts:
        """Sketch the tensors that the value has beside a network of such a form."""

    @abstractmethod
    def restore(self, parts: dict[str, Mapping[str, Tensor]], network: Outline | None) -> None:
        """Take its own tensors out of saved ones, and make the value of them.

        Args:
            parts: as saved; what is taken is removed.
            network: the form of the method's network; none if there is none.

        Raises:
            DamagedError: if they are not what such a place holds.
        """

    def mask(self, classes: Collection[int]) -> None:
        """Hide these class indices and no others."""
        return


@final
class NetworkPlace(Place[ExpandableNetwork]):
    """A network of backbones like the learner's own and one head.

    Args:
        name: what the names of its parts start with.
        factory: makes it anew where it is loaded.
        num_more: how many more backbones it has than the method's network. With more than none,
            there is no such network yet after the first task.
    """

    def __init__(self, name: str, factory: ModuleFactory, num_more: int = 0) -> None:
        super().__init__(name)
        self.comes_later = num_more > 0
        self._workshop = factory
        self._num_more = num_more

    @override
    def parts(self) -> Parts:
        if self.value is None:
            return {}
        return {f"{self.name}{part}": tensors for part, tensors in self.value.parts().items()}

    @override
    def outline(self, network: Outline) -> Parts:
        own = network.with_more(self._num_more)
        return {f"{self.name}{part}": tensors for part, tensors in own.parts().items()}

    @override
    def restore(self, parts: dict[str, Mapping[str, Tensor]], network: Outline | None) -> None:
        self.value = None
        own = [name for name in parts if name.startswith(self.name)]
        count = sum(name.startswith(f"{self.name}backbone.") for name in own)
        if not count or network is None:
            return
        expected = network.with_more(count - network.num_backbones).parts()
        for part, tensors in expected.items():
            what = f"{self.name}{part}".replace("backbone.", "backbone ")
            refuse_unlike(tensors, parts.get(f"{self.name}{part}", {}), what)
        made = self._workshop.network(count, network.head.num_classes)
        for part, module in made.modules_by_part().items():
            name = f"{self.name}{part}"
            load_exactly(module, parts.pop(name), name.replace("backbone.", "backbone "))
        self.value = made

    @override
    def mask(self, classes: Collection[int]) -> None:
        if self.value is not None:
            self.value.head.mask(classes)


@final
class TensorsPlace(Place[dict[str, Tensor]]):
    """Named tensors whose shapes follow from the network's form.

    Args:
        name: of the one part that they make.
        like: sketches them beside a network; a plain function, for methods are copied.
        device: where they live.
        is_needed: whether a network without them is refused.
        rows: whether their rows are classes, those of forgotten ones 0.
        renamed: beginnings of names that earlier versions wrote, and what they are now.
    """

    def __init__(
        self,
        name: str,
        like: Callable[[Outline], Mapping[str, Tensor]],
        device: torch.device,
        *,
        is_needed: bool = True,
        rows: bool = False,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name)
        self._like = like
        self._device = device
        self._is_needed = is_needed
        self._rows = rows
        self._renamed = renamed or {}

    @override
    def parts(self) -> Parts:
        return {} if self.value is None else {self.name: self.value}

    @override
    def outline(self, network: Outline) -> Parts:
        return {self.name: self._like(network)}

    @override
    def restore(self, parts: dict[str, Mapping[str, Tensor]], network: Outline | None) -> None:
        self.value = None
        what = self.name.replace("_", " ")
        if network is None or (self.name not in parts and not self._is_needed):
            return
        if self.name not in parts:
            raise DamagedError(f"the saved method lacks the {what} of its network")
        saved = {self._now(name): tensor for name, tensor in parts.pop(self.name).items()}
        like = self._like(network)
        refuse_unlike(like, saved, what)
        device = self._device
        self.value = {name: torch.empty_like(t, device=device) for name, t in like.items()}
        load_tensors(self.value, saved, what)

    @override
    def mask(self, classes: Collection[int]) -> None:
        if self._rows and self.value is not None:
            for tensor in self.value.values():
                tensor[list(classes)] = 0

    def _now(self, name: str) -> str:
        for earlier, now in self._renamed.items():
            if name.startswith(earlier):
                return now + name.removeprefix(earlier)
        return name


ModuleT = TypeVar("ModuleT", bound=nn.Module)


@final
class ModulePlace(Place[ModuleT]):
    """A module whose form follows from the settings alone.

    Args:
        name: of the one part that its tensors make.
        make: makes a fresh one on the device; a plain function, for methods are copied.
        sketch: makes one on the meta device, which takes no memory.
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
    def restore(self, parts: dict[str, Mapping[str, Tensor]], network: Outline | None) -> None:
        self.value = None
        if network is not None:
            # Before anything is made: the settings of a stranger's file may ask for any width.
            refuse_unlike(self._sketch().state_dict(), parts.get(self.name, {}), self.name)
            made = self._make().eval().requires_grad_(False)
            load_exactly(made, parts.pop(self.name, {}), self.name)
            self.value = made


@final
class Kept:
    """All that a method keeps between tasks beside its exemplars.

    Args:
        factory: makes what is loaded.
    """

    def __init__(self, factory: ModuleFactory) -> None:
        self._workshop = factory
        self._places: list[Place[Any]] = []
        self._values: Values | None = None
        self.network = self.network_place("")

    def network_place(self, name: str, num_more: int = 0) -> NetworkPlace:
        """Declare a network; see ``NetworkPlace``."""
        place = NetworkPlace(name, self._workshop, num_more)
        self._places.append(place)
        return place

    def tensors_place(
        self,
        name: str,
        like: Callable[[Outline], Mapping[str, Tensor]],
        *,
        is_needed: bool = True,
        rows: bool = False,
        renamed: Mapping[str, str] | None = None,
    ) -> TensorsPlace:
        """Declare named tensors; see ``TensorsPlace``."""
        device = self._workshop.device.torch_device
        place = TensorsPlace(name, like, device, is_needed=is_needed, rows=rows, renamed=renamed)
        self._places.append(place)
        return place

    def module_place(
        self, name: str, make: Callable[[], ModuleT], sketch: Callable[[], nn.Module]
    ) -> ModulePlace[ModuleT]:
        """Declare a module; see ``ModulePlace``."""
        place = ModulePlace(name, make, sketch)
        self._places.append(place)
        return place

    def values(self, values: ValuesT) -> ValuesT:
        """Declare small values, and return them."""
        self._values = values
        return values

    def state(self) -> MethodState:
        """Return the state; the tensors are the method's own, not copies."""
        parts = {name: part for place in self._places for name, part in place.parts().items()}
        return MethodState(self._values.model_dump() if self._values else {}, parts)

    def restore(self, state: MethodState, num_classes: int) -> None:
        """Put a state of ``num_classes`` classes in place of what is there.

        Raises:
            DamagedError: if it is no state that this method could have given.
        """
        parts = dict(state.parts)
        count = sum(name.startswith("backbone.") for name in parts)
        outline = self._workshop.outline(count, num_classes) if count else None
        for place in self._places:
            place.restore(parts, outline)
        method = self._workshop.settings.method.name
        if parts:
            raise DamagedError(
                f"the saved {method} has parts that it never writes: '{ascii(min(parts))[1:81]}'"
            )
        self._restore_values(dict(state.values), count, num_classes, method)

    def _restore_values(
        self, saved: dict[str, Any], num_backbones: int, num_classes: int, method: str
    ) -> None:
        if self._values is None:
            if saved:
                raise DamagedError(f"the saved {method} has values that it never writes")
            return
        try:
            found = type(self._values).model_validate(saved)
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            where = ascii(".".join(str(part) for part in detail["loc"])[:200])[1:-1]
            damage = f"is damaged: {where}: {detail['msg']}"
            raise DamagedError(f"the saved {method} {damage}") from error
        missing = type(found).model_fields.keys() - saved.keys()
        if missing:
            raise DamagedError(f"the saved {method} is damaged: it lacks '{min(missing)}'")
        problem = found.problem(num_backbones, num_classes if num_backbones else 0)
        if problem:
            raise DamagedError(f"the saved {method} {problem}")
        for name in type(found).model_fields:
            setattr(self._values, name, getattr(found, name))

    def forget(self, classes: Collection[int]) -> None:
        """Hide these old classes and no others; what the weights know of them stays."""
        for place in self._places:
            place.mask(classes)

    def bytes_after(self, num_classes: int, num_more: int = 0) -> int:
        """Count the bytes of the files once so many classes are learnt, headers included.

        Args:
            num_classes: classes seen by then.
            num_more: backbones that are added to those there are. The first task builds one in
                any case.
        """
        network = self.network.value
        count = len(network.backbones) + num_more if network is not None else 1
        outline = self._workshop.outline(count, num_classes)
        return sum(
            encoded_size({name: (tuple(t.shape), t.dtype) for name, t in part.items()})
            for place in self._places
            if network is not None or not place.comes_later
            for part in place.outline(outline).values()
        )

    def refuse_unfit(self, shape: tuple[int, int, int]) -> None:
        """Try the network on one image of shape (C, H, W).

        Raises:
            ValueError: when its backbone cannot take such images.
        """
        network = self.network.value
        if network is not None:
            backbone, trunk = network.backbones[0], network.trunk
            probe = backbone if trunk is None else nn.Sequential(trunk, backbone)
            self._workshop.refuse_unfit_backbone(shape, probe)
