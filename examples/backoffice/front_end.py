"""The company's web API with FastAPI: `uvicorn front_end:app`. Employees send the token of their login."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jwt
from fastapi import Body, Depends, FastAPI, Form, HTTPException, Request, UploadFile
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.sse import EventSourceResponse, ServerSentEvent

from waystation import AgentClient, WaystationError
from waystation.artifacts import ObjectStoreArtifactService

ISSUER, AUDIENCE = os.environ["BACKOFFICE_ISSUER"], os.environ["BACKOFFICE_AUDIENCE"]
keys = jwt.PyJWKClient(os.environ["BACKOFFICE_JWKS"])
artifacts = ObjectStoreArtifactService(os.environ["BACKOFFICE_ARTIFACTS"])


@asynccontextmanager
async def connect(app: FastAPI) -> AsyncIterator[None]:
    """Connect once. `TEMPORAL_*` and `WAYSTATION_*` name the server, the stores and the keys."""
    app.state.client = await AgentClient.connect(store=os.environ["WAYSTATION_STORE"])
    yield


app = FastAPI(title="Back office", lifespan=connect)


@dataclass(frozen=True)
class Employee:
    """The verified sender of a request."""

    name: str
    token: str
    """The workers verify it again. It proves who requested a call and who answered it."""


def verify(bearer: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]) -> Employee:
    """Return the employee whom the token of a request names."""
    try:
        key = keys.get_signing_key_from_jwt(bearer.credentials)
        claims = jwt.decode(bearer.credentials, key, ["RS256", "ES256"], audience=AUDIENCE, issuer=ISSUER)
        return Employee(claims["sub"], bearer.credentials)
    except (jwt.PyJWTError, KeyError):
        raise HTTPException(401, "The token is not valid.") from None


def get_client(request: Request) -> AgentClient:
    """Return the client of this process."""
    client: AgentClient = request.app.state.client
    return client


Me = Annotated[Employee, Depends(verify)]
Client = Annotated[AgentClient, Depends(get_client)]
Desk = Annotated[Literal["support_desk", "research_desk"], Body()]
Action = Annotated[Literal["approve", "reject"], Body()]
Text = Annotated[str, Body()]


@app.exception_handler(WaystationError)
async def report(request: Request, error: WaystationError) -> JSONResponse:
    """Report a refusal, such as that of an answer, with its reason."""
    return JSONResponse({"error": type(error).__name__, "message": str(error)}, 409)


@app.post("/expenses/{claim}")
async def claim_expense(
    claim: str, text: Annotated[str, Form()], receipt: UploadFile, me: Me, client: Client
) -> dict[str, str]:
    """Claim an expense. A claim that is sent again counts once."""
    session = client.session(agent="expense_desk", session_id=claim, user_id=me.name)
    name = receipt.filename or "receipt"
    await session.save_artifact(name, await receipt.read(), mime_type=receipt.content_type, artifacts=artifacts)
    sent = await session.send(f"{text}, receipt {name}", message_id="claim", token=me.token, streaming=True)
    return {"invocation": sent.id}


@app.post("/conversations/{conversation}")
async def send(conversation: str, desk: Desk, text: Text, me: Me, client: Client) -> dict[str, str]:
    """Send a message to a desk."""
    session = client.session(agent=desk, session_id=conversation, user_id=me.name)
    sent = await session.send(text, token=me.token, streaming=True)
    return {"invocation": sent.id}


@app.get("/conversations/{conversation}/events", response_class=EventSourceResponse)
async def follow(conversation: str, me: Me, client: Client) -> AsyncIterator[ServerSentEvent]:
    """Stream a conversation, with the text that a model is generating, until it ends or the reader leaves."""
    session = client.session(agent="support_desk", session_id=conversation, user_id=me.name)
    async for event in session.follow(partial=True):
        yield ServerSentEvent(data=event.to_json())


@app.get("/calls")
async def list_own_calls(me: Me, client: Client) -> list[dict[str, Any]]:
    """List the employee's calls that wait for an approval."""
    return [
        {"id": call.approval_id, "title": call.title, "digest": call.digest}
        for call in await client.pending(user_id=me.name)
    ]


@app.post("/calls/{call:path}")
async def decide(call: str, action: Action, digest: Text, comment: Text, me: Me, client: Client) -> dict[str, Any]:
    """Answer a call, as the approver saw it (`digest`). The workers verify that the policy of the call allows it."""
    return await client.approvals.answer(call, action, token=me.token, digest=digest, comment=comment)
