"""The company's web API with FastAPI: `uvicorn front_end:app`. Employees send the access token of their login."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Body, Depends, FastAPI, Form, HTTPException, Request, UploadFile
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.sse import EventSourceResponse, ServerSentEvent

from waystation import AgentClient, NotAllowed, WaystationError
from waystation.approvers.identity import BearerTokens


@asynccontextmanager
async def connect(app: FastAPI) -> AsyncIterator[None]:
    """Connect once, with the settings in `waystation.toml`."""
    app.state.client, app.state.tokens = await AgentClient.connect(), BearerTokens.load()
    yield


app = FastAPI(title="Back office", lifespan=connect)


@dataclass(frozen=True)
class Employee:
    """The verified sender of a request. The workers verify the token again, which proves who requested a call."""

    client: AgentClient
    name: str
    token: str


async def verify(request: Request, bearer: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]) -> Employee:
    """Return the sender of a request, who is named in its token."""
    try:
        who = (await request.app.state.tokens.identify(bearer.credentials)).who
    except NotAllowed as error:
        raise HTTPException(401, str(error)) from None
    return Employee(request.app.state.client, who.subject, bearer.credentials)


Me = Annotated[Employee, Depends(verify)]
Desk = Annotated[Literal["support_desk", "research_desk"], Body()]


@app.exception_handler(WaystationError)
async def report(request: Request, error: WaystationError) -> JSONResponse:
    """Report a refusal, such as that of a closed conversation, with its reason."""
    return JSONResponse({"error": type(error).__name__, "message": str(error)}, 409)


@app.post("/expenses/{claim}")
async def claim_expense(claim: str, text: Annotated[str, Form()], receipt: UploadFile, me: Me) -> dict[str, str]:
    """Claim an expense. A claim that is sent again counts once."""
    session = me.client.session(agent="expense_desk", session_id=claim, user_id=me.name)
    name = receipt.filename or "receipt"
    await session.save_artifact(name, await receipt.read(), mime_type=receipt.content_type)
    sent = await session.send(f"{text}, receipt {name}", message_id="claim", token=me.token, streaming=True)
    return {"invocation": sent.id}


@app.post("/conversations/{conversation}")
async def send(conversation: str, desk: Desk, text: Annotated[str, Body()], me: Me) -> dict[str, str]:
    """Send a message to a desk."""
    session = me.client.session(agent=desk, session_id=conversation, user_id=me.name)
    sent = await session.send(text, token=me.token, streaming=True)
    return {"invocation": sent.id}


@app.get("/conversations/{conversation}/events", response_class=EventSourceResponse)
async def follow(conversation: str, me: Me) -> AsyncIterator[ServerSentEvent]:
    """Stream a conversation, with the text that a model is generating, until it ends or the reader leaves."""
    session = me.client.session(agent="support_desk", session_id=conversation, user_id=me.name)
    async for event in session.follow(partial=True):
        yield ServerSentEvent(data=event.to_json())
