// Append new events to the page of an invocation. Without JavaScript the page is complete and reloads itself.
"use strict";

const list = document.getElementById("events");
const partial = document.getElementById("partial");
const stale = document.getElementById("stale");
const base = list.dataset.base;
let next = Number(list.dataset.next);
let fetching = Promise.resolve();
const texts = new Map(); // model call -> { attempt, from, text, line }

let source;

function follow() {
  source = new EventSource(`${base}/events?partial=1&start=${next}`);
  source.onopen = () => (stale.textContent = "");
  source.onmessage = (message) => {
    const count = Number(message.lastEventId) + 1;
    fetching = fetching.then(() => rowsUntil(count)).catch(() => {}); // the next message fetches these rows, too
  };
  source.addEventListener("partial", (message) => grow(JSON.parse(message.data)));
  source.addEventListener("end", (message) => {
    source.close();
    document.getElementById("status").textContent = JSON.parse(message.data).status;
  });
  source.onerror = () => {
    stale.textContent = "The server does not answer, so this page may be out of date.";
    // EventSource reconnects after a lost connection, but not after a refusal.
    if (source.readyState !== EventSource.CLOSED) return;
    fetching = fetching.then(() => rowsUntil(Infinity)).catch(() => {}); // detects an ended login
    setTimeout(follow, 5000);
  };
}

function grow(event) {
  const facts = event.customMetadata.partial_text;
  let current = texts.get(facts.model_call);
  if (facts.void || facts.complete) {
    // Keep a complete text until its event is in the list.
    const gone = () => current && current.line.remove();
    texts.delete(facts.model_call);
    if (facts.void) gone();
    else setTimeout(() => fetching.then(gone), 0);
    return;
  }
  if (!current || current.attempt !== facts.attempt) {
    if (current) current.line.remove();
    current = { attempt: facts.attempt, from: 0, text: "", line: document.createElement("p") };
    const who = document.createElement("b");
    who.textContent = event.author;
    current.line.append(who, ": ", document.createElement("span"));
    partial.append(current.line);
    texts.set(facts.model_call, current);
  }
  // After a reconnection, text may repeat or be missing; the offset tells.
  const piece = event.content.parts.map((part) => part.text || "").join("");
  const known = Array.from(current.text);
  if (facts.offset < current.from || facts.offset > current.from + known.length) {
    current.from = facts.offset;
    current.text = piece;
  } else {
    current.text = known.slice(0, facts.offset - current.from).join("") + piece;
  }
  current.line.lastChild.textContent = (current.from ? "…" : "") + current.text;
}

async function rowsUntil(count) {
  if (count <= next) return;
  const answer = await fetch(`${base}/rows?start=${next}`, { credentials: "same-origin" });
  // The login has ended; the page shows that, or leads to the login.
  if (answer.status === 401) location.reload();
  if (!answer.ok) return;
  // The server renders and escapes this, like the page.
  const rows = new DOMParser().parseFromString(await answer.text(), "text/html").body.children;
  for (const row of Array.from(rows)) {
    list.append(row);
    next = Number(row.id.slice(1)) + 1;
  }
}

follow();
