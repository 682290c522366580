"""Who may see the page: whoever has its address, and no other page of the browser.

The address has a token, so other users of the machine cannot guess it.  A browser runs pages
of others too.  Such a page can send requests here, although it does not know the token, and it
can give this machine's address a name of its own (DNS rebinding) to read the answers.  So the
host and the origin of each request are checked as well.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

_TOKEN_BYTES = 16

# None of these is in the Host header of a browser.
_PARTS_OF_URLS = frozenset("@/?#\\")

# What the page may load, and who may show it in a frame: itself and nobody.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address has the token
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused.

    Attributes:
        status: The status of HTTP.
        text: What is told, in one sentence.
    """

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class Access:
    """What a request must have.

    Attributes:
        token: The first part of each path.
        host: The host that the page was bound to, which may be a name.
    """

    token: str
    host: str

    @classmethod
    def to(cls, host: str) -> Access:
        """Make a token for a page that is served at a host."""
        return cls(secrets.token_urlsafe(_TOKEN_BYTES), host)

    def refusal(self, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """Return why a request is refused, or ``None``.

        Args:
            path: Its path.
            headers: Its headers, by their names in lower case.
        """
        host = headers.get("host", "")
        if not self._is_ours(host):
            return Refusal(
                421, "The page is not known by this host name: use the printed address."
            )
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return Refusal(403, "A page of another origin may not use this one.")
        if headers.get("sec-fetch-site") == "cross-site" and (
            headers.get("sec-fetch-mode") != "navigate"
        ):
            return Refusal(403, "A page of another site may not use this one.")
        given = path.removeprefix("/").partition("/")[0]
        # compare_digest takes text only if it is ASCII.
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return Refusal(
                401, "The address lacks the token: use the one that was printed."
            )
        return None

    def _is_ours(self, host: str) -> bool:
        """Return whether a Host header cannot come from another's name for this machine.

        The port is not compared: it may be another one, forwarded by ssh.
        """
        if not _PARTS_OF_URLS.isdisjoint(host):
            return False
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in {"localhost", self.host.lower()}:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
