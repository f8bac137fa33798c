"""``grace`` called in this process, as people call it."""

from typing import Any

from typer.testing import CliRunner

from grace.cli.app import app


def call(*arguments: object, **more: Any) -> Any:
    """Call ``grace``; an error that is not shown to people in one line is raised."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], **more)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def ran(*arguments: object, code: int = 0) -> Any:
    """Call ``grace``, which must end with an exit code; return the result."""
    result = call(*arguments)
    assert result.exit_code == code, result.stderr
    return result
