"""Make the keys, and an example of each configuration, for `waystation identity init`."""

import os
import secrets
from pathlib import Path

from joserfc.jwk import ECKey

from waystation.core import InvalidConfiguration, JsonObject, encode

GATEWAY = "https://approvals.example.com"
_PRIVATE, _PUBLIC = 0o600, 0o644

WORKERS = f"""\
# Workers: --identity workers.toml, or WAYSTATION_IDENTITY=workers.toml
# No key here can answer a call.

[envelope]
private_key = "envelope-private.json"   # opens the tokens that clients seal; a file, or "env:NAME"

# `waystation web`, which people log in to. Each of its tokens is good for one answer.
[[issuers]]
issuer = "{GATEWAY}"
audience = "waystation"
jwks = "gateway-jwks.json"
bound = true

# An identity provider, for people who answer with tokens of their own.
# [[issuers]]
# issuer = "https://login.example.com/realms/main"
# audience = "waystation"
# jwks = "https://login.example.com/realms/main/keys"   # or a file; leave it out to have the provider asked
# subject_claim = "sub"
# roles_claim = "roles"                                 # or a path, such as "realm_access.roles"

# Signs the links in messages to people.
[links]
key = "links.key"
lifetime_days = 3
"""

WEB = f"""\
# The gateway: WAYSTATION_IDENTITY=gateway.toml waystation web
# Only this process may read gateway-signing.json: whoever can, answers in anybody's name.

[gateway]
signing_key = "gateway-signing.json"
issuer = "{GATEWAY}"                    # as in workers.toml
audience = "waystation"

[envelope]
public_key = "envelope-public.json"

[links]
key = "links.key"
lifetime_days = 3
decide = false                          # whether a link lets the person for whom it was made answer, too

# Where people log in.
# [oidc]
# issuer = "https://login.example.com/realms/main"
# client_id = "waystation"
# client_secret_file = "oidc-secret"    # or "env:NAME"
# roles_claim = "roles"
"""

CLIENTS = """\
# Programs that answer with a person's token: AgentClient.connect(identity="clients.toml"), or
# WAYSTATION_IDENTITY=clients.toml waystation approve …

[envelope]
public_key = "envelope-public.json"
"""


def write(folder: Path) -> list[Path]:
    """Write keys and configurations into a folder, and return the files. Nothing that is there is overwritten.

    Raises:
        InvalidConfiguration: One of them exists, or the folder cannot be written.
    """
    envelope = ECKey.generate_key("P-256", {"use": "enc"}, auto_kid=True)
    gateway = ECKey.generate_key("P-256", {"use": "sig"}, auto_kid=True)
    files: list[tuple[str, int, bytes]] = [
        ("envelope-private.json", _PRIVATE, _jwk(envelope, private=True)),
        ("envelope-public.json", _PUBLIC, _jwk(envelope, private=False)),
        ("gateway-signing.json", _PRIVATE, _jwk(gateway, private=True)),
        ("gateway-jwks.json", _PUBLIC, encode({"keys": [gateway.as_dict(private=False)]})),
        ("links.key", _PRIVATE, secrets.token_urlsafe(48).encode()),
        ("workers.toml", _PUBLIC, WORKERS.encode()),
        ("gateway.toml", _PUBLIC, WEB.encode()),
        ("clients.toml", _PUBLIC, CLIENTS.encode()),
    ]
    if there := [name for name, _, _ in files if (folder / name).exists()]:
        raise InvalidConfiguration(folder / there[0], "", "exists already; give another folder, or remove it.")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, mode, data in files:
            # Created with its mode, so that at no time anybody else can read it.
            with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data + b"\n" * (not data.endswith(b"\n")))
    except OSError as error:
        raise InvalidConfiguration(folder, "", f"cannot be written: {error.strerror}.") from None
    return [folder / name for name, _, _ in files]


def _jwk(key: ECKey, *, private: bool) -> bytes:
    made: JsonObject = dict(key.as_dict(private=private))
    return encode(made)
