"""Requests by wrk, which takes much less of the machine than any client in Python."""

import json
import shutil
import subprocess
from pathlib import Path

CONNECTIONS = 32
SCRIPT = Path(__file__).with_name("wrk.lua")
MISSING = "wrk is not installed: apt-get install wrk, or see github.com/wg/wrk"
ERRORS = ("connect", "read", "write", "status", "timeout")


class WrkError(RuntimeError):
    """wrk is missing or has failed; the text says which."""


def run(port: int, seconds: float) -> dict[str, float]:
    """Send requests for *seconds*, each connection one after the other.

    Returns:
        Requests per second, latencies in ms, and how many requests failed.

    Raises:
        WrkError: If there is no wrk, or it fails.
    """
    if not (wrk := shutil.which("wrk")):
        raise WrkError(MISSING)
    # wrk counts whole seconds only.
    options = ["--threads", "1", "--connections", str(CONNECTIONS)]
    options += ["--duration", f"{max(1, round(seconds))}s", "--script", str(SCRIPT)]
    done = subprocess.run(
        [wrk, *options, f"http://127.0.0.1:{port}/"],
        capture_output=True,
        text=True,
        timeout=seconds + 30,
        check=False,
    )
    return parse(done.stdout or done.stderr)


def parse(output: str) -> dict[str, float]:
    """Read what wrk and its script have printed.

    Raises:
        WrkError: If there is no result in it.
    """
    _, found, line = output.rpartition("RESULT ")
    if not found:
        raise WrkError(output.strip() or "wrk prints nothing")
    result = json.loads(line)
    return {
        "rate": result["requests"] / (result["duration"] / 1e6),
        "p50_ms": result["p50"] / 1e3,
        "p99_ms": result["p99"] / 1e3,
        "errors": sum(result[kind] for kind in ERRORS),
    }
