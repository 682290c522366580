"""How hard hypothesis tries: ``HYPOTHESIS_PROFILE=deep`` before a release."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadline for one example: on a machine that is shared, it only measures others.
settings.register_profile("dev", max_examples=60, deadline=None)
settings.register_profile("ci", max_examples=100, deadline=None, print_blob=True)
settings.register_profile(
    "deep",
    max_examples=3_000,
    stateful_step_count=120,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
)
