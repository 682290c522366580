"""The command ``asyncpool``, and what all its subcommands share."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import click
from click.shell_completion import get_completion_class

from asyncpool import __version__
from asyncpool._cli.parameters import (
    CommandError,
    Exit,
    UnfinishedError,
    add_current_folder,
)

# In which module each is, as its name and _command.
_PLACES: dict[str, Any] = {
    "agent": "agent",
    "call": "call",
    "dashboard": "dashboard",
    "doctor": "doctor",
    "map": "map.map_command",
    "serve": "serve",
    "status": "status",
    **dict.fromkeys(("kill", "profile", "recycle", "reload"), "orders"),
    **dict.fromkeys(("requests", "resize", "stacks", "stop"), "orders"),
}


class _Commands(click.Group):
    """The subcommands; errors of all of them are shown in one way."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a subcommand, which is imported when it is asked for.

        A pool alone takes 0.15 s to import, which most of them do without.
        """
        found: Any = super().get_command(ctx, cmd_name)
        if isinstance(found, str):
            module = importlib.import_module(f"asyncpool._cli.{found}")
            found = getattr(module, f"{cmd_name}_command")
        return cast("click.Command | None", found)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read the command line."""
        with _ends_told():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Do what it says."""
        with _ends_told():
            return super().invoke(ctx)


@contextmanager
def _ends_told() -> Generator[None]:
    """Report Ctrl-C and a closed stdout without a traceback, and how a negative number is passed."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    except click.NoSuchOption as error:
        name = error.option_name
        if not name[1:2].isdigit():
            raise
        # As in: asyncpool call math:fabs -5
        text = f"{error.message} If it is an argument, put -- before it: -- {name}"
        raise click.NoSuchOption(name, text, ctx=error.ctx) from None
    except BrokenPipeError:
        _drop_stdout()
        sys.exit(Exit.BROKEN_PIPE)
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _drop_stdout()
        raise UnfinishedError(f"cannot write stdout: {error.strerror}") from None


def _drop_stdout() -> None:
    """Drop what stdout has buffered; the interpreter would complain about it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@click.group(
    cls=_Commands,
    commands=_PLACES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="asyncpool")
def command() -> None:
    """Run Python functions, and servers, in supervised worker processes.

    They are named package.module:name and found as "python -m" finds them: in
    the current folder, in PYTHONPATH, in what is installed.

    \b
    Exit codes:
      0    all went well
      1    some items or the call failed, or something that pools need is missing
      2    a mistake in the command, or a journal that belongs to another run
      3    it could not go on: the disk is full, or workers do not start or live
      124  the call took longer than its --timeout
      130  Ctrl-C (143: SIGTERM); with --journal the same command goes on
      141  nobody reads stdout any more
    """  # noqa: D301 - \b is click's
    try:
        add_current_folder()
    except FileNotFoundError:
        raise CommandError(
            "the current folder was removed: change to another"
        ) from None


@command.command("completion", short_help="Print what completes asyncpool in a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print what completes asyncpool's commands and options in a shell.

    \b
    asyncpool completion bash >> ~/.bash_completion
    asyncpool completion zsh > ~/.zfunc/_asyncpool
    asyncpool completion fish > ~/.config/fish/completions/asyncpool.fish
    """  # noqa: D301
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(command, {}, "asyncpool", "_ASYNCPOOL_COMPLETE").source())
