"""The files of a task as artifacts of A2A: their content, or a link if they are large."""

from typing import Any
from urllib.parse import urlencode

import structlog
from a2a.types import Artifact, Part

from waystation.client import Session
from waystation.core import ids
from waystation.core.errors import InputValidationError, StoreFailed
from waystation.core.log import Log
from waystation.interfaces.a2a_server.task_views import format_part
from waystation.web.paths import API_V1
from waystation.web.web_services import WebServices

log = structlog.get_logger("waystation.web")

INLINE_BYTES = 1_000_000
"""Maximum size of a file whose content is part of a task. Of a larger one, the task has a link."""
MAX_FILES = 50
"""A task has its latest files."""


async def read_files(services: WebServices, session: Session, latest: Log, link: str) -> list[Artifact]:
    """Return the files that an invocation has saved, each in its latest version."""
    names, found = session.given, list(latest.state.outcome.artifact_delta.items())[-MAX_FILES:]
    scope = ids.stored_names(names.app_key, names.user_id, names.session_id)
    artifacts = []
    for name, version in found:
        try:
            part = await services.sessions.open_artifacts().load_artifact(**scope, filename=name, version=version)
        except (StoreFailed, InputValidationError) as error:
            log.warning("artifact.left_out", invocation_id=latest.invocation_id, error_type=type(error).__name__)
            continue
        if part is not None:
            place = f"{link}{API_V1}/sessions/{session.id.replace('%', '%25').replace('/', '%2F')}/artifacts/content"
            url = f"{place}?{urlencode({'name': name, 'version': version})}"
            shown = make_part(part, name, url)
            artifacts.append(Artifact(artifact_id=f"file:{name}:{version}", name=name, parts=[shown]))
    return artifacts


def make_part(part: Any, name: str, url: str) -> Part:
    """Return a stored file as a part. `url` is where its content can be downloaded."""
    size = len(part.inline_data.data or b"") if part.inline_data else len((part.text or "").encode())
    kind = (part.inline_data or part.file_data).mime_type if part.inline_data or part.file_data else "text/plain"
    made = format_part(part.model_dump(mode="json", by_alias=True, exclude_none=True)) if size <= INLINE_BYTES else None
    made = made or Part(url=url)
    made.filename, made.media_type = name, kind or "application/octet-stream"
    return made
