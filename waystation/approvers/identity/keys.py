"""The public keys of trusted issuers, which come from a file, a URL or OpenID discovery."""

import asyncio
import time
import warnings
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path

from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey, import_key

from waystation.approvers.identity.identity_file import MIN_RSA_BITS, Configuration
from waystation.core.errors import IdentityUnavailable
from waystation.core.payload import JsonObject, decode
from waystation.core.secrets import is_private_url
from waystation.tls import default_ssl_context

DISCOVERY = "/.well-known/openid-configuration"
FETCH_LIMIT_S = 5.0
MAX_BYTES = 500_000
MAX_KEYS = 100
REFETCH_AFTER_S = 60.0
"""The minimum time between fetches for unknown keys, and between retries while cached keys are usable, in seconds.
Forged tokens may name any key, so this limits fetches.
"""
FRESH_S = 3_600.0
"""Keys older than this many seconds are fetched again before their next use, in case a key was revoked."""
STALE_S = 86_400.0
"""How long cached keys remain usable after they were fetched if the issuer has become unreachable, in seconds."""
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519", "Ed25519": "Ed25519"}


class IssuerKeys:
    """The keys of one issuer, which are cached for `FRESH_S` seconds, or `STALE_S` while the issuer is unreachable."""

    def __init__(self, issuer: str, place: str | Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Set the issuer and the file or URL of its keys. If `place` is None, the URL is discovered from the issuer."""
        self._issuer, self._place, self._clock = issuer, place, clock
        self._keys: Sequence[Key] = ()
        self._read_at = self._tried_at = float("-inf")
        self._lock = asyncio.Lock()

    @classmethod
    def of(cls, configuration: Configuration, key: str, issuer: str, jwks: str | None) -> "IssuerKeys":
        """Return the keys for an issuer in a section of a configuration.

        Raises:
            InvalidConfiguration: The file does not contain keys, or the URL cannot be trusted.
        """
        if jwks is not None and "://" not in jwks:
            path = configuration.path(jwks)
            try:
                parse_key_set(read_file(path))
            except (OSError, ValueError) as error:
                problem = f"{path} is not a readable JSON Web Key Set: {getattr(error, 'strerror', error)}."
                raise configuration.fault(f"{key}.jwks", problem) from None
            return cls(issuer, path)
        if not is_private_url(jwks or issuer):
            problem = "keys are fetched only over https or from this machine."
            raise configuration.fault(f"{key}.{'jwks' if jwks else 'issuer'}", problem)
        return cls(issuer, jwks)

    async def find(self, kid: str | None, algorithm: str) -> Key | None:
        """Return the key that a token's header refers to, or None if the issuer has no such key for the algorithm.

        A new key may not be found until `REFETCH_AFTER_S` seconds have passed since the last fetch.

        Raises:
            IdentityUnavailable: The keys cannot be fetched.
        """
        async with self._lock:
            age, since_try = self._clock() - self._read_at, self._clock() - self._tried_at
            is_usable = bool(self._keys) and age < STALE_S
            if not is_usable or (age >= FRESH_S and since_try >= REFETCH_AFTER_S):
                await self._read(required=not is_usable)
            key = self._select(kid, algorithm)
            if key is None and self._clock() - self._tried_at >= REFETCH_AFTER_S:
                await self._read(required=True)
                key = self._select(kid, algorithm)
            return key

    def _select(self, kid: str | None, algorithm: str) -> Key | None:
        suitable = [key for key in self._keys if is_suitable(key, algorithm) and kid in (None, key.get("kid"))]
        # If the token does not name a key ID, exactly one key must match.
        return suitable[0] if len(suitable) == 1 or (suitable and kid is not None) else None

    async def _read(self, *, required: bool) -> None:
        """Fetch the keys. If this fails, keep the cached keys, or raise IdentityUnavailable if `required` is set."""
        self._tried_at = self._clock()
        try:
            keys = parse_key_set(await self._fetch())
        except (OSError, ValueError) as error:
            if required:
                raise IdentityUnavailable(f"The keys of {self._issuer} cannot be read right now ({error}).") from None
            return
        self._keys, self._read_at = keys, self._clock()

    async def _fetch(self) -> JsonObject:
        if isinstance(self._place, Path):
            return await asyncio.to_thread(read_file, self._place)
        return await fetch(self._place or await discover_endpoint(self._issuer, "jwks_uri"))


def is_suitable(key: Key, algorithm: str) -> bool:
    """Return whether a key can verify signatures made with an algorithm. Shared keys are never accepted."""
    if key.get("use", "sig") != "sig" or key.get("alg", algorithm) != algorithm:
        return False
    match key:
        case RSAKey():
            return algorithm[:2] in ("RS", "PS") and key.public_key.key_size >= MIN_RSA_BITS
        case ECKey() | OKPKey():
            return _CURVES.get(algorithm) == key.curve_name
        case _:
            return False


async def discover_endpoint(issuer: str, name: str) -> str:
    """Return an endpoint URL from an OpenID provider's metadata.

    Raises:
        OSError: The provider is unreachable.
        ValueError: The metadata is invalid or belongs to a different issuer, or the URL cannot be trusted.
    """
    metadata = await fetch(issuer.rstrip("/") + DISCOVERY)
    if metadata.get("issuer") != issuer:
        raise ValueError("the provider's metadata names a different issuer than the configuration")
    url = metadata.get(name)
    if not isinstance(url, str) or not is_private_url(url):
        raise ValueError(f"the provider's metadata has no trusted {name}")
    return url


async def fetch(url: str) -> JsonObject:
    """Fetch a JSON object from a URL.

    Raises:
        OSError: The request failed.
        ValueError: The response is not a JSON object, or is too large.
    """
    import httpx2

    try:
        async with (
            asyncio.timeout(FETCH_LIMIT_S),
            httpx2.AsyncClient(timeout=FETCH_LIMIT_S, follow_redirects=False, verify=default_ssl_context()) as client,
            client.stream("GET", url, headers={"Accept": "application/json"}) as response,
        ):
            if response.status_code != HTTPStatus.OK:
                raise OSError(f"the status was {response.status_code}")
            data = b""
            async for piece in response.aiter_bytes():
                data += piece
                if len(data) > MAX_BYTES:
                    raise ValueError(f"the response has more than {MAX_BYTES} bytes")
    except TimeoutError:  # its own message is empty
        raise OSError(f"no response within {FETCH_LIMIT_S:g} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise OSError(type(error).__name__) from None
    return _parse_object(data)


def read_file(path: Path) -> JsonObject:
    """Read a JSON object from a file.

    Raises:
        OSError: The file cannot be read.
        ValueError: The content is not a JSON object.
    """
    return _parse_object(path.read_bytes())


def parse_key_set(jwks: JsonObject) -> Sequence[Key]:
    """Return the asymmetric keys among the first `MAX_KEYS` in a JSON Web Key Set. Unknown types are skipped.

    Raises:
        ValueError: The set contains no such key.
    """
    items = jwks.get("keys")
    keys: list[Key] = []
    for item in items[:MAX_KEYS] if isinstance(items, list) else ():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # ignore warnings about weak keys, which `is_suitable` rejects
                key = import_key(item)
        except Exception:  # noqa: BLE001  # one unknown type of key must not invalidate the others
            continue
        if not isinstance(key, OctKey):
            keys.append(key)
    if not keys:
        raise ValueError("it has no keys that can verify signatures")
    return keys


def _parse_object(data: bytes) -> JsonObject:
    try:
        content = decode(data)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    return content
