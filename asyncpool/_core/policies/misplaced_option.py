"""Where an option belongs that a function was given in place of the pool."""

from __future__ import annotations

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def note_on_misplaced(names: Iterable[str], text: str, options: Collection[str]) -> str:
    """Say where an option belongs that was passed to a function that does not take it.

    Args:
        names: The keyword arguments of the call.
        text: The text of the ``TypeError`` that Python has raised for the call.
        options: The names of the options of jobs.

    Returns:
        A sentence, or an empty text if none of *names* is the reason.
    """
    takes_none = "takes no keyword arguments" in text
    for name in names:
        refused = (
            f"unexpected keyword argument '{name}'" in text
            or f"'{name}' is an invalid keyword argument" in text
        )
        if name in options and (refused or takes_none):
            return (
                f"The function was given {name}=...: as an option of the job it goes into "
                f"Pool.options({name}=...).submit(...)."
            )
    return ""
