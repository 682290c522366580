"""A certificate of nobody's, for servers that are tested."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

__all__ = ["client_context", "server_context", "write_certificate"]

_PEM = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgdnpi/6VwoWWm8znG
l944C/Q0h3Ivr3+8zNohb8J/jEmhRANCAATNRauFFAwHHGgEcFhHGtNMntpT/1CL
MsQFzd6cLKfanIVuoYCMlhAVKrulgdp3qPHddWgBX84LkGffAhyQhoTW
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUT4ceiYalE8ZtNjkpLBzid3oMQbIwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMjA2NTExMVoYDzIxMjYxMDI5
MDY1MTExWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATNRauFFAwHHGgEcFhHGtNMntpT/1CLMsQFzd6cLKfanIVuoYCMlhAV
Krulgdp3qPHddWgBX84LkGffAhyQhoTWo28wbTAdBgNVHQ4EFgQUTufVKH/k6wtc
S5eV6ovJo6MDvJgwHwYDVR0jBBgwFoAUTufVKH/k6wtcS5eV6ovJo6MDvJgwDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSAAwRQIgN9WzzkLdwD+35xGgAphI65WEYYvG0+xQLb3+E1czdFMCIQC0
YG9TSoYEU+4WESNB0/7+ezqHCqnQQ7ByByt9i2tm7Q==
-----END CERTIFICATE-----
"""


def write_certificate(folder: Path) -> str:
    """Return a file with the certificate and its key."""
    path = folder / "localhost.pem"
    path.write_text(_PEM)
    return str(path)


def server_context() -> ssl.SSLContext:
    """Return what servers encrypt with; called in workers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        context.load_cert_chain(write_certificate(Path(folder)))
    return context


def client_context() -> ssl.SSLContext:
    """Return what clients trust."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=_PEM[_PEM.index("-----BEGIN CERT") :])
    return context
