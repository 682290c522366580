"""Imported by a launcher, this gives its process a default timeout for sockets."""

import socket

socket.setdefaulttimeout(5.0)
