"""The codecs of the reference for Go, Java and TypeScript work with Temporal's SDKs, and so do remote codecs."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.documents import blocks, section
from tests.paths import ROOT
from tests.server.encryption.test_encrypted_namespace import write_keys
from tests.server.encryption.test_other_clients import ORDER, PAGE, VECTORS
from tests.server.processes.workers import Process
from tests.slow.programs.test_other_languages import JAVA_SDK, build_go, download, need, prepare_java, running
from tests.steps import wait_until
from waystation import ActivityTool, Agent
from waystation.embedded import EmbeddedServer
from waystation.storage import ENCRYPTION_VARIABLE, USER_KEYS_VARIABLE
from waystation.testing import AgentEnvironment, ScriptedModel, calls, responses, says

pytestmark = pytest.mark.timeout(900)

EXPECTED = [f"{codec} {v['name']} true" for codec in ("own", "remote", "to remote") for v in VECTORS["vectors"]]
TOKEN = "a-token-of-at-least-thirty-two-characters"
GO_MAIN = """
func main() {
	var input struct{ Keys, Remote, Token string; Vectors []struct{ Name, Key, Serialized, Data string } }
	check(json.Unmarshal([]byte(os.Getenv("INPUT")), &input))
	codec, err := NewEncryptionCodec([]byte(input.Keys))
	check(err)
	remote := converter.NewRemotePayloadCodec(converter.RemotePayloadCodecOptions{
		Endpoint: input.Remote,
		ModifyRequest: func(r *http.Request) error { r.Header.Set("Authorization", "Bearer "+input.Token); return nil },
	})
	for _, vector := range input.Vectors {
		data, _ := base64.StdEncoding.DecodeString(vector.Data)
		serialized, _ := base64.StdEncoding.DecodeString(vector.Serialized)
		plain := &commonpb.Payload{}
		check(proto.Unmarshal(serialized, plain))
		metadata := map[string][]byte{"encoding": []byte("binary/encrypted"), "encryption-key-id": []byte(vector.Key)}
		encrypted := []*commonpb.Payload{{Metadata: metadata, Data: data}}
		for name, pair := range map[string][2]converter.PayloadCodec{
			"own": {codec, codec}, "remote": {codec, remote}, "to remote": {remote, codec},
		} {
			again, err := pair[0].Encode([]*commonpb.Payload{plain})
			check(err)
			decrypted, err := pair[1].Decode(append(again, encrypted...))
			check(err)
			fmt.Println(name, vector.Name, proto.Equal(decrypted[0], plain) && proto.Equal(decrypted[1], plain))
		}
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
"""
GO_IMPORTS = '"encoding/json"\n\t"fmt"\n\t"net/http"\n\t"os"\n\n\t"go.temporal.io/sdk/converter"\n'
JAVA_MAIN = """
  public static void main(String[] arguments) throws Exception {
    var input = new ObjectMapper().readTree(System.getenv("INPUT"));
    PayloadCodec codec = new EncryptionCodec(input.get("keys").asText());
    PayloadCodec remote = RemoteCodec.connect(input.get("remote").asText(), input.get("token").asText());
    for (var vector : input.get("vectors")) {
      Payload plain = Payload.parseFrom(Base64.getDecoder().decode(vector.get("serialized").asText()));
      Payload encrypted = Payload.newBuilder()
          .putMetadata("encoding", ByteString.copyFromUtf8("binary/encrypted"))
          .putMetadata("encryption-key-id", ByteString.copyFromUtf8(vector.get("key").asText()))
          .setData(ByteString.copyFrom(Base64.getDecoder().decode(vector.get("data").asText())))
          .build();
      for (var pair : Map.of("own", List.of(codec, codec), "remote", List.of(codec, remote),
          "to remote", List.of(remote, codec)).entrySet()) {
        Payload again = pair.getValue().get(0).encode(List.of(plain)).get(0);
        boolean same = pair.getValue().get(1).decode(List.of(again, encrypted)).equals(List.of(plain, plain));
        System.out.println(pair.getKey() + " " + vector.get("name").asText() + " " + same);
      }
    }
  }
}
"""
TYPESCRIPT_WORKER = """
import { createRequire } from 'node:module';
import { NativeConnection, Worker } from '@temporalio/worker';
import { EncryptionCodec, RemoteCodec } from '@waystation/encryption';
const connection = await NativeConnection.connect({ address: process.env.TEMPORAL_ADDRESS });
const headers = () => ({ Authorization: `Bearer ${process.env.TOKEN}` });
const codec = process.env.REMOTE
  ? new RemoteCodec(process.env.REMOTE, headers)
  : await EncryptionCodec.fromFile(process.env.WAYSTATION_ENCRYPTION_KEYS);
const failureConverterPath = createRequire(import.meta.url).resolve('@waystation/encryption/failure-converter');
const activities = {
  async ship({ order }) {
    if (order === 'B2') throw new Error('Tweety is secret');
    return { shipped: order };
  },
};
const dataConverter = { payloadCodecs: [codec], failureConverterPath };
await (await Worker.create({ connection, taskQueue: 'plain', activities, dataConverter })).run();
"""


@asynccontextmanager
async def codec_server(folder: Path, switches: dict[str, str]) -> AsyncIterator[str]:
    """Run `waystation codec-server`, and return its address."""
    command = (sys.executable, "-m", "waystation.cli", "codec-server", "--port", "0", "--store", str(folder / "store"))
    async with Process(*command, environment={**switches, "WAYSTATION_WEB_TOKEN": TOKEN}) as process:

        async def find_urls() -> list[str]:
            return re.findall(r"http://127\.0\.0\.1:\d+", "\n".join(process.other))[:1]

        [url] = await wait_until(find_urls, "the address of the codec server")
        yield url


def vector_keys(folder: Path) -> Path:
    """Write the keys of the test vectors to a key file."""
    file = folder / "keys.json"
    file.write_text(json.dumps({"keys": VECTORS["keys"]}))
    file.chmod(0o600)
    return file


def run_vectors(*command: str | Path, folder: Path, remote: str = "") -> list[str]:
    """Run a program on the test vectors, and return its lines of output."""
    given = {"keys": json.dumps({"keys": VECTORS["keys"]}), "vectors": VECTORS["vectors"], "remote": remote}
    environment = os.environ | {"INPUT": json.dumps({**given, "token": TOKEN})}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


async def test_go_uses_the_format_and_the_codec_server(tmp_path: Path) -> None:
    """The codec of the page and Go's remote codec decrypt the vectors, and what the other one encrypted."""
    source = blocks(section(PAGE, "## Go"), "go")[0].replace('"encoding/json"\n\t"fmt"\n', GO_IMPORTS)
    built = build_go(tmp_path, source + GO_MAIN)
    async with codec_server(tmp_path, {ENCRYPTION_VARIABLE: str(vector_keys(tmp_path))}) as url:
        lines = run_vectors(built, folder=tmp_path, remote=url)
    assert lines == sorted(EXPECTED)


async def test_java_uses_the_format_and_the_codec_server(tmp_path: Path) -> None:
    """The codec of the page and Java's remote codec decrypt the vectors, and what the other one encrypted."""
    own, remote = blocks(section(PAGE, "## Java"), "java")
    imports, _, program = remote.partition("\n\n")
    source = f"{imports}\n{own.rstrip().removesuffix('}')}{JAVA_MAIN}\n{program}"
    encoder = f"io.temporal:temporal-remote-data-encoder:{JAVA_SDK}"
    command = prepare_java(tmp_path, "EncryptionCodec", source, encoder, "com.squareup.okhttp3:okhttp:4.12.0")
    async with codec_server(tmp_path, {ENCRYPTION_VARIABLE: str(vector_keys(tmp_path))}) as url:
        lines = run_vectors(*command, folder=tmp_path, remote=url)
    assert lines == sorted(EXPECTED)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the package as its page says, and install it beside Temporal's worker for TypeScript."""
    folder, npm = tmp_path_factory.mktemp("package"), need("npm")
    quiet = ("--no-audit", "--no-fund", "--loglevel", "error")
    shutil.copytree(ROOT / "clients" / "typescript", folder / "build", ignore=shutil.ignore_patterns("node_modules"))
    download(npm, "install", *quiet, folder=folder / "build")
    download(npm, "pack", *quiet, folder=folder / "build")
    (folder / "package.json").write_text('{"type": "module"}')
    (built,) = (folder / "build").glob("*.tgz")
    download(npm, "install", *quiet, str(built), "@temporalio/worker@1.24.0", folder=folder)
    return folder


@pytest.mark.parametrize("remote", [False, True])
async def test_a_worker_in_typescript_runs_tools_of_encrypted_agents(
    package: Path, server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    """The built package decrypts arguments, and encrypts results and failures. The history shows none of them.

    With keys of users, the arguments of a session can be decrypted only through the codec server.
    """
    write_keys(tmp_path / "keys.json", "first")
    switches = {ENCRYPTION_VARIABLE: str(tmp_path / "keys.json")}
    if remote:
        switches[USER_KEYS_VARIABLE] = str(tmp_path / "user-keys.db")
    for name, value in switches.items():
        monkeypatch.setenv(name, value)
    (package / "worker.ts").write_text(TYPESCRIPT_WORKER)
    model = ScriptedModel(calls(("ship", {"order": "A1"})), calls(("ship", {"order": "B2"})), says("Done."))
    tool = ActivityTool("ship", schema=ORDER, task_queue="plain", effect="once")
    agent = Agent(name="seller", model=model, tools=[tool])
    node = Path(sys.executable).with_name("node")
    async with codec_server(tmp_path, switches) as url:
        if remote:
            monkeypatch.setenv("REMOTE", url)
            monkeypatch.setenv("TOKEN", TOKEN)
        async with (
            AgentEnvironment(agent, server=server, store=tmp_path / "store") as env,
            running(node, "worker.ts", folder=package, address=server.address),
        ):
            invocation = await env.client.start("seller", "go", user_id="ann")
            assert (await invocation.result()).text == "Done."
            saved = await invocation.saved()
    results: dict[str, Any] = dict(responses(model.requests[1]))
    assert results == {"ship": {"shipped": "A1"}}
    assert "Tweety is secret" in json.dumps(responses(model.requests[2]))
    assert b"Tweety" not in b"".join(event.SerializeToString() for event in saved.histories[0].events)
    assert b"A1" not in b"".join(event.SerializeToString() for event in saved.histories[0].events)
