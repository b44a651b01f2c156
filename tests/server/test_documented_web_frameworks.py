"""The applications of the page on web frameworks work unchanged, apart from the folder of the artifacts."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2 as httpx
import pytest

from tests.agents import PAY, payer
from tests.documents import blocks, how_to
from tests.fakes.openid import FakeOpenId
from tests.server.conftest import Serve
from tests.steps import start_and_wait
from tests.unit.identity.test_bearer import RESOURCE, write
from waystation import Agent, ApprovalPolicy, NotAllowed, load_artifacts
from waystation.artifacts import ObjectStoreArtifactService
from waystation.testing import AgentEnvironment, FunctionModel, says, user_text
from waystation.tools.services import Services

APP, CALLS, DESK, ASGI, VIEWS = blocks(how_to("use-a-web-framework"), "python")
SUPPORT = Agent(
    name="support", model=FunctionModel(lambda request: says(f"Re: {user_text(request)}")), tools=[load_artifacts]
)


def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def load(name: str, text: str, env: AgentEnvironment, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a program, which connects to the server of the test."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", env.server.address)
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(text, name, "exec"), module.__dict__)
    return module


async def test_the_application_in_fastapi_works(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user uploads a file, sends a message twice, and reads the stream until the session is closed."""
    pytest.importorskip("fastapi")
    text = APP.replace(".waystation/artifacts", str(tmp_path))
    stored = ObjectStoreArtifactService(str(tmp_path))
    async with serve(SUPPORT, task_queue="waystation", services=Services(artifacts=stored)) as env:
        app = load("app", text, env, monkeypatch).app
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://x/conversations/fastapi") as browser,
        ):
            browser.headers["X-User"] = "uma"
            assert (await browser.put("/files/a.txt", content=b"hello")).json() == {"version": 0}
            sent = [await browser.put("/messages/m-1", params={"text": "Hello"}) for _ in range(2)]
            assert sent[0].json() == sent[1].json()
            session = env.client.session(agent="support", session_id="fastapi", user_id="uma")
            await env.client.invocation(sent[0].json()["invocation"]).result()
            await session.close()
            stream = (await browser.get("/events")).text
        files = await stored.list_artifact_keys(app_name=session.given.app_key, user_id="uma", session_id="fastapi")
    assert files == ["a.txt"]
    assert stream.count("Re: Hello") >= 1


async def test_an_application_lists_the_calls_of_a_token(
    serve: Serve, own_openid: FakeOpenId, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The roles in the token decide, and a token for another server is refused."""
    own_openid.audience = RESOURCE
    (tmp_path / "identity").mkdir()
    write(tmp_path / "identity" / "gateway.toml", own_openid)
    monkeypatch.chdir(tmp_path)
    agent = payer(pay, PAY, approval=ApprovalPolicy(approvers=("role:finance",)))
    async with serve(agent, verify=False) as env:
        list_calls = load("calls", CALLS, env, monkeypatch).list_calls
        invocation = await start_and_wait(env.client.start("payer", "pay 5"))
        for role, expected in (("finance", [invocation.id]), ("sales", [])):
            found = await list_calls(env.client, own_openid.token("emil", roles=[role]))
            assert [call.invocation_id for call in found if call.invocation_id == invocation.id] == expected
        with pytest.raises(NotAllowed):
            await list_calls(env.client, own_openid.token(aud="another"))


async def test_the_views_in_django_work(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user sends a message, and reads the stream until the session is closed."""
    conf = pytest.importorskip("django.conf")
    if not conf.settings.configured:
        conf.settings.configure(DEFAULT_CHARSET="utf-8")
    test = pytest.importorskip("django.test")

    class User:
        def get_username(self) -> str:
            return "uma"

    async def auser() -> User:
        return User()

    def with_user(request: Any) -> Any:
        request.auser = auser
        return request

    async with serve(SUPPORT, task_queue="waystation") as env:
        views = load("views", VIEWS, env, monkeypatch)
        requests = test.AsyncRequestFactory()
        sent = await views.send(with_user(requests.post("/", {"text": "Hello", "message_id": "m-1"})), "django")
        await env.client.invocation(json.loads(sent.content)["invocation"]).result()
        await env.client.session(agent="support", session_id="django", user_id="uma").close()
        response = await views.follow(with_user(requests.get("/")), "django")
        stream = "".join([part.decode() async for part in response.streaming_content])
    assert "Re: Hello" in stream


async def test_the_application_with_our_pages_works(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of fewer than 40 lines mounts our pages, for the people of its login, and streams a chat."""
    pytest.importorskip("fastapi")
    async with serve(SUPPORT, task_queue="waystation") as env:
        app = load("desk", DESK, env, monkeypatch).app
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost", headers={"X-User": "uma"}) as browser,
        ):
            session = env.client.session(agent="support", session_id="desk", user_id="uma")
            await session.say("Hello")
            await session.close()
            stream = (await browser.get("/chats/desk/events")).text
            page = await browser.get("/desk/sessions", headers={"Accept": "text/html"})
            del browser.headers["X-User"]
            stranger = await browser.get("/desk/sessions", headers={"Accept": "text/html"})
    assert len(DESK.splitlines()) < 40
    assert "Re: Hello" in stream
    assert 'href="/desk/static/style.css"' in page.text
    assert stranger.headers["location"] == "/login?next=%2Fdesk%2Fsessions"


async def test_the_application_in_django_has_our_pages(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person with a session of Django sees our pages, and nobody else does."""
    conf = pytest.importorskip("django.conf")
    if not conf.settings.configured:
        conf.settings.configure(DEFAULT_CHARSET="utf-8")
    auth = pytest.importorskip("django.contrib.auth")
    engine = ModuleType("engine")

    class User:
        is_active = True

        def __init__(self, name: str | None) -> None:
            self.name = name or ""

        def get_username(self) -> str:
            return self.name

    async def aget_user(request: Any) -> User:
        return User(request.session)

    engine.SessionStore = lambda key: key  # type: ignore[attr-defined]  # a module of the test
    monkeypatch.setitem(sys.modules, "engine", engine)
    monkeypatch.setattr(auth, "aget_user", aget_user)
    monkeypatch.setattr(conf.settings, "SESSION_ENGINE", "engine", raising=False)
    async with serve(SUPPORT, task_queue="waystation") as env:
        transport = httpx.ASGITransport(load("asgi", ASGI, env, monkeypatch).application)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as browser:
            stranger = await browser.get("/desk/sessions")
            browser.cookies.set(conf.settings.SESSION_COOKIE_NAME, "uma")
            page = await browser.get("/desk/sessions")
    assert (stranger.status_code, page.status_code) == (401, 200)
    assert 'href="/desk/static/style.css"' in page.text
