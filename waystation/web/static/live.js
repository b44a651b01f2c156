// Keep the page of an open invocation fresh: its top on every page, and new events in the conversation. Without
// JavaScript the page is complete and reloads itself.
"use strict";

const overview = document.getElementById("overview");
const list = document.getElementById("events"); // only in the conversation
const partial = document.getElementById("partial");
const stale = document.getElementById("stale");
const base = list && list.dataset.base;
let next = list && Number(list.dataset.next);
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
  source.addEventListener("end", () => {
    source.close();
    refresh();
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
    next = Number(row.id.slice(1));
  }
  refresh();
}

async function refresh() {
  const selected = getSelection();
  if (document.hidden || (!selected.isCollapsed && overview.contains(selected.anchorNode))) return;
  const answer = await fetch(overview.dataset.here, { credentials: "same-origin" }).catch(() => ({ ok: false }));
  if (answer.status === 401) location.reload();
  // In the conversation, the event stream says whether the server answers.
  if (!list) stale.textContent = answer.ok ? "" : "The server does not answer, so this page may be out of date.";
  if (!answer.ok) return;
  // The server renders and escapes this, like the page.
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").body;
  const href = overview.contains(document.activeElement) && document.activeElement.getAttribute("href");
  overview.replaceChildren(...fresh.childNodes);
  if (href) overview.querySelector(`a[href="${CSS.escape(href)}"]`)?.focus({ preventScroll: true });
}

const EVERY_MS = 5000;
const again = () => setTimeout(() => refresh().catch(() => {}).finally(again), EVERY_MS);
again();
if (list) follow();
