"""TLS for connections over HTTP."""

import functools
import ssl


@functools.cache
def default_ssl_context() -> ssl.SSLContext:
    """Return an SSL context that trusts the certificate authorities of the system.

    The context is shared. A client that creates its own reads the certificates of all authorities, which blocks for
    50 ms. Changes of the system's certificates take effect when the process starts again.
    """
    import httpx2

    return httpx2.create_ssl_context()
