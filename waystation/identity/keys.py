"""The public keys of those whose word workers take: from a file, an address, or what a provider publishes of itself."""

import asyncio
import time
import warnings
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path

from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey, import_key

from waystation.core import IdentityUnavailable, JsonObject, decode, trusted
from waystation.identity.configuration import MIN_RSA_BITS, Configuration

DISCOVERY = "/.well-known/openid-configuration"
FETCH_LIMIT_S = 5.0
MAX_BYTES = 500_000
MAX_KEYS = 100
REFETCH_AFTER_S = 60.0
"""How soon after a look the provider is asked again because of a key that is not known: a forger may name any."""
FRESH_S = 3_600.0
"""After so long it is asked in any case: it may have withdrawn a key."""
STALE_S = 86_400.0
"""So long its keys are used on while it cannot be asked."""
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519", "Ed25519": "Ed25519"}


class IssuerKeys:
    """The keys of one issuer, kept for a while."""

    def __init__(self, issuer: str, place: str | Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`place` is a file or a URL, or None to ask the issuer where they are."""
        self._issuer, self._place, self._clock = issuer, place, clock
        self._keys: Sequence[Key] = ()
        self._read_at = self._tried_at = float("-inf")
        self._lock = asyncio.Lock()

    @classmethod
    def of(cls, configuration: Configuration, key: str, issuer: str, jwks: str | None) -> "IssuerKeys":
        """Return the keys that a configuration names.

        Raises:
            InvalidConfiguration: They are not there, or not where they can be trusted.
        """
        if jwks is not None and "://" not in jwks:
            path = configuration.path(jwks)
            try:
                keys_in(from_file(path))
            except (OSError, ValueError) as error:
                problem = f"{path} is not a readable JSON Web Key Set: {getattr(error, 'strerror', error)}."
                raise configuration.fault(f"{key}.jwks", problem) from None
            return cls(issuer, path)
        if not trusted(jwks or issuer):
            problem = "keys are read over https only, or from this machine."
            raise configuration.fault(f"{key}.{'jwks' if jwks else 'issuer'}", problem)
        return cls(issuer, jwks)

    async def find(self, kid: str | None, algorithm: str) -> Key | None:
        """Return the key by which a token says that it is signed; None when the issuer has no such key.

        Raises:
            IdentityUnavailable: The issuer cannot be asked.
        """
        async with self._lock:
            age, since_try = self._clock() - self._read_at, self._clock() - self._tried_at
            usable = bool(self._keys) and age < STALE_S
            if not usable or (age >= FRESH_S and since_try >= REFETCH_AFTER_S):
                await self._read(required=not usable)
            found = self._known(kid, algorithm)
            if found is None and self._clock() - self._tried_at >= REFETCH_AFTER_S:
                await self._read(required=True)
                found = self._known(kid, algorithm)
            return found

    def _known(self, kid: str | None, algorithm: str) -> Key | None:
        suitable = [key for key in self._keys if suits(key, algorithm) and kid in (None, key.get("kid"))]
        # Without a name it has to be clear which one is meant.
        return suitable[0] if len(suitable) == 1 or (suitable and kid is not None) else None

    async def _read(self, *, required: bool) -> None:
        """Read the keys. Unless they are required, those known already are used on when they cannot be had."""
        self._tried_at = self._clock()
        try:
            keys = keys_in(await self._fetched())
        except (OSError, ValueError) as error:
            if required:
                raise IdentityUnavailable(f"The keys of {self._issuer} cannot be read now ({error}).") from None
            return
        self._keys, self._read_at = keys, self._clock()

    async def _fetched(self) -> JsonObject:
        if isinstance(self._place, Path):
            return await asyncio.to_thread(from_file, self._place)
        return await fetched(self._place or await endpoint(self._issuer, "jwks_uri"))


def suits(key: Key, algorithm: str) -> bool:
    """Whether a key is one for signatures of that kind; no shared key ever is."""
    if key.get("use", "sig") != "sig" or key.get("alg", algorithm) != algorithm:
        return False
    match key:
        case RSAKey():
            return algorithm[:2] in ("RS", "PS") and key.public_key.key_size >= MIN_RSA_BITS
        case ECKey() | OKPKey():
            return _CURVES.get(algorithm) == key.curve_name
        case _:
            return False


async def endpoint(issuer: str, name: str) -> str:
    """Return an address that an OpenID provider publishes of itself.

    Raises:
        OSError: It is not reached.
        ValueError: It publishes none that can be trusted, or is another provider.
    """
    published = await fetched(issuer.rstrip("/") + DISCOVERY)
    if published.get("issuer") != issuer:
        raise ValueError("the provider says that it is another issuer than the configuration has")
    found = published.get(name)
    if not isinstance(found, str) or not trusted(found):
        raise ValueError(f"the provider publishes no {name} that can be trusted")
    return found


async def fetched(url: str) -> JsonObject:
    """Return the JSON object at an address.

    Raises:
        OSError: Nothing is reached there.
        ValueError: Something else is there.
    """
    import httpx2

    try:
        async with (
            asyncio.timeout(FETCH_LIMIT_S),
            httpx2.AsyncClient(timeout=FETCH_LIMIT_S, follow_redirects=False) as client,
            client.stream("GET", url, headers={"Accept": "application/json"}) as response,
        ):
            if response.status_code != HTTPStatus.OK:
                raise OSError(f"the status was {response.status_code}")
            data = b""
            async for piece in response.aiter_bytes():
                data += piece
                if len(data) > MAX_BYTES:
                    raise ValueError(f"more than {MAX_BYTES} bytes are there")
    except TimeoutError:  # says nothing by itself
        raise OSError(f"nothing came within {FETCH_LIMIT_S:g} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise OSError(type(error).__name__) from None
    return _object(data)


def from_file(path: Path) -> JsonObject:
    """Return the JSON object in a file.

    Raises:
        OSError: It cannot be read.
        ValueError: Something else is in it.
    """
    return _object(path.read_bytes())


def keys_in(jwks: JsonObject) -> Sequence[Key]:
    """Return the keys of a JSON Web Key Set by which signatures are verified. What is not understood is passed over.

    Raises:
        ValueError: There are none.
    """
    given = jwks.get("keys")
    found = []
    for item in given[:MAX_KEYS] if isinstance(given, list) else ():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of weak keys: `suits` passes them over
                key = import_key(item)
        except Exception:  # noqa: BLE001  # of a kind that is not known; one such key is no reason to refuse all
            continue
        if not isinstance(key, OctKey):
            found.append(key)
    if not found:
        raise ValueError("no key for signatures is there")
    return found


def _object(data: bytes) -> JsonObject:
    try:
        found = decode(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError("no JSON object is there")
    return found
