"""Servers for ASGI and WSGI applications, and for plain protocols of asyncio."""
