"""A small service of suppliers: `uvicorn suppliers:app --port 8301`."""

import os
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException

SUPPLIERS = {"chairs": "Sitwell & Sons", "paper": "Reams Ltd"}

app = FastAPI()


@app.get("/suppliers/{goods}")
def get_supplier(goods: str, x_api_key: Annotated[str, Header()]) -> dict[str, str]:
    """Return the supplier of goods."""
    if x_api_key != os.environ.get("SUPPLIERS_KEY", "known-to-everyone"):
        raise HTTPException(401)
    if goods not in SUPPLIERS:
        raise HTTPException(404, f"Nobody supplies {goods}.")
    return {"name": SUPPLIERS[goods]}
