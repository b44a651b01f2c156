"""ADK's routes for the files of a session."""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from google.genai import types
from pydantic import ValidationError
from starlette.requests import Request

from waystation.core import ids
from waystation.core.errors import InputValidationError, InvalidInput
from waystation.core.payload import JsonObject, describe_faults, encode
from waystation.interfaces.adk_web.adk_bodies import ArtifactBody
from waystation.interfaces.adk_web.adk_sessions import AdkSessions
from waystation.interfaces.adk_web.path_names import get_name
from waystation.web.http_responses import RequestRefused
from waystation.web.web_services import WebServices

MAX_VERSION = 10**9


class AdkArtifacts:
    """The handlers for artifacts."""

    def __init__(self, services: WebServices, sessions: AdkSessions) -> None:
        self._services, self._sessions = services, sessions

    async def list_names(self, request: Request) -> list[str]:
        """List the names of the files of a session, and of those of its user."""
        names: list[str] = await self._call(request, "list_artifact_keys")
        return names

    async def list_versions(self, request: Request) -> list[int]:
        """List the numbers of the versions of a file."""
        versions: list[int] = await self._call(request, "list_versions", filename=get_name(request, "name"))
        return versions

    async def list_metadata(self, request: Request) -> list[JsonObject]:
        """Describe the versions of a file."""
        found = await self._call(request, "list_artifact_versions", filename=get_name(request, "name"))
        return list(map(_describe, found))

    async def read_metadata(self, request: Request) -> JsonObject:
        """Describe one version of a file."""
        names = {"filename": get_name(request, "name"), "version": _parse_version(request)}
        return _describe(_check(await self._call(request, "get_artifact_version", **names)))

    async def load(self, request: Request) -> JsonObject:
        """Return the content of a file as a genai Part, by default of its latest version."""
        names = {"filename": get_name(request, "name"), "version": _parse_version(request)}
        part = _check(await self._call(request, "load_artifact", **names))
        content: JsonObject = part.model_dump(mode="json", by_alias=True, exclude_none=True)
        return content

    async def save(self, request: Request, body: ArtifactBody) -> JsonObject:
        """Save a new version of a file, and describe it."""
        try:
            part = types.Part.model_validate_json(encode(body.artifact))
        except ValidationError as error:
            raise InvalidInput(f"`artifact` is not a genai Part: {describe_faults(error)}.") from None
        session = await self._sessions.find_named(request)
        blob = part.inline_data
        content = part.text if blob is None else blob.data or b""
        if content is None:
            raise InvalidInput(
                "`artifact` has neither `text` nor `inlineData`. Files that are elsewhere are not saved."
            )
        mime = blob.mime_type if blob else None
        store = self._services.sessions.open_artifacts()
        version = await session.save_artifact(body.filename, content, artifacts=store, mime_type=mime)
        saved = await self._call(request, "get_artifact_version", filename=body.filename, version=version)
        return _describe(_check(saved))

    async def _call(self, request: Request, method: str, **arguments: Any) -> Any:
        """Call a method of the artifact service for the session that the path names."""
        names = (await self._sessions.find_named(request)).given
        scope = ids.stored_names(names.app_key, names.user_id, names.session_id)
        service = await asyncio.to_thread(self._services.sessions.open_artifacts)
        try:
            return await getattr(service, method)(**scope, **arguments)
        except InputValidationError as error:
            raise InvalidInput(str(error)) from None


def _describe(version: Any) -> JsonObject:
    """Return the metadata of a version without `canonicalUri`, which is a place in the workers' store."""
    described: JsonObject = version.model_dump(mode="json", by_alias=True, exclude={"canonical_uri"}, exclude_none=True)
    return described


def _check(found: Any) -> Any:
    if found is None:
        raise RequestRefused(HTTPStatus.NOT_FOUND, "UnknownArtifact", "Artifact not found")
    return found


def _parse_version(request: Request) -> int | None:
    names: Mapping[str, str] = {**request.query_params, **request.path_params}
    if (version := names.get("version", "latest")) == "latest":
        return None
    if not (version.isdecimal() and version.isascii() and int(version[:12]) <= MAX_VERSION):
        raise InvalidInput("The version must be a number, or `latest`.")
    return int(version)
