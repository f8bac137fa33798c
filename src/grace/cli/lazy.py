"""A command group that imports a command's module only when the command is called."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from grace.cli.console import say

_UsageError: Any = typer.BadParameter.mro()[1]
"""The base of all errors of usage, for which typer has no public name."""


class LazyGroup(TyperGroup):
    """Imports a verb's module only to run the verb or to show its own help."""

    verbs: ClassVar[Mapping[str, str]]
    """What each command does, by name, in the order of the help."""
    places: ClassVar[Mapping[str, str]]
    """Where it is, as ``"module:function"`` of this room."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 - passed on
        super().__init__(**attributes)
        for name, text in self.verbs.items():
            # It has what the group's help and suggestions need.
            self.add_command(TyperCommand(name, help=text))

    @override
    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        # Without arguments, typer shows the help; it raises an error of usage for that too.
        with _one_line_usage() if args else nullcontext():
            return super().make_context(info_name, args, parent, **extra)

    @override
    def invoke(self, ctx: Any) -> Any:
        with _one_line_usage():
            return super().invoke(ctx)

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, found, rest = super().resolve_command(ctx, args)
        return name, self._imported(name) if name and found else found, rest

    def _imported(self, name: str) -> Any:  # noqa: ANN401 - typer has no public type of commands
        module, _, function = self.places[name].partition(":")
        single = typer.Typer(add_completion=False)
        single.command(name)(getattr(import_module(f"grace.cli.{module}"), function))
        return typer.main.get_command(single)


@contextmanager
def _one_line_usage() -> Iterator[None]:
    """Report errors of usage in one line, as all errors; typer would print a box of several."""
    try:
        yield
    except _UsageError as error:
        context = error.ctx
        hint = f" (see '{context.command_path} -h')" if context else ""
        say(f"error: {error.format_message()}{hint}", err=True)
        raise typer.Exit(2) from None
