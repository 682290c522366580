"""Guards that every test runs under, and the loops that they run with."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.strategies import booleans

from tests.helpers.guards import Snapshot, mark_descendants
from tests.helpers.log_table import provoked
from tests.helpers.loops import loop_factories, skips, warm_up

# pytest rewrites the assertions of all tests, which takes each process that runs them 10 s:
# they are to keep that, also where Python is told to write nothing.  What tests start is not.
sys.dont_write_bytecode = False

# These assert too, and are to say as much as a test when it fails.
pytest.register_assert_rewrite("tests.helpers.pools", "tests.helpers.scripts")

# A loop in debug mode logs what has taken 0.1 s, which on a busy machine says nothing of the code;
# and tests look at all that was logged.
logging.getLogger("asyncio").addFilter(
    # The second one is of uvloop's timers.
    lambda record: (
        str(record.msg).replace("%r", "%s") != "Executing %s took %.3f seconds"
    )
)

# How hard hypothesis tries: HYPOTHESIS_PROFILE=deep before a release.  No example has a
# deadline: on a machine that is shared, that only measures others.
# Where CI is set, Hypothesis has each run make the same examples, unless a profile says otherwise.
settings.register_profile("dev", max_examples=60, deadline=None)
settings.register_profile(
    "ci", max_examples=100, deadline=None, print_blob=True, derandomize=True
)
# For another Python, beside a run with more: it is the same code.
settings.register_profile("brief", max_examples=20, deadline=None, print_blob=True)
settings.register_profile(
    "deep",
    max_examples=3_000,
    stateful_step_count=120,
    deadline=None,
    print_blob=True,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow],
)
# For planted faults: what fails need not be small, and each run makes the same examples.
settings.register_profile(
    "mutants",
    max_examples=60,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
)


def pytest_sessionstart() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell gives that to what it runs in the background, and it is inherited,
        # also by scripts that are to be interrupted.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):  # likewise, the latter by nohup
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    mark_descendants()
    warm_up()


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    at_night = bool(os.environ.get("ASYNCPOOL_NIGHT"))
    left = {item for item in items if skips(item)}
    left |= {item for item in items if not at_night and "nightly" in item.keywords}
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=list(left))


def pytest_collection_finish() -> None:
    # What pytest has built so far stays: let no collection look at it again, since
    # there is one after every test.  Hypothesis makes its source of randomness with the
    # first example, and asks the collector who holds it; on 3.15 that finds nobody among
    # what is frozen, and Hypothesis warns.  So it has its first example before that.
    find(booleans(), lambda _: True)
    gc.collect()
    gc.freeze()


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    marker = item.get_closest_marker("asyncio")
    if marker is not None and "loop_factories" in marker.kwargs:
        return loop_factories()
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that leaves anything behind, and say what."""
    if request.node.get_closest_marker("leaks_allowed"):
        yield  # and nothing is ended: a browser that serves several tests starts what it likes
        return
    before = Snapshot()
    yield
    leaks = before.leaks()
    assert not leaks, "the test left behind: " + "; ".join(leaks)


@pytest.fixture(autouse=True)
def logged(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that does not log what ``pytest.mark.logs`` names, as it is documented."""
    marker = request.node.get_closest_marker("logs")
    if marker is None:
        yield
        return
    with provoked(set(marker.args)):
        yield
