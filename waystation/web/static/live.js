// Keep the page of an open invocation fresh: its top on every page, new events in the conversation, and the timeline,
// the model calls and the state. Without JavaScript the page is complete and reloads itself.
"use strict";

const overview = document.getElementById("overview");
const list = document.getElementById("events"); // only in the conversation
const partial = document.getElementById("partial");
const view = document.getElementById("view");
const stale = document.getElementById("stale");
const OUTDATED = "The server does not answer, so this page may be out of date.";
const base = list && list.dataset.base;
let next = list && Number(list.dataset.next);
let fetching = Promise.resolve();
const texts = new Map(); // model call -> { attempt, from, text, line }

let stream = null;

function follow(source) {
  source.onopen = () => (stale.textContent = "");
  source.onmessage = (message) => {
    const count = Number(message.lastEventId) + 1;
    fetching = fetching.then(() => rowsUntil(count)).catch(() => {}); // the next message fetches these rows, too
  };
  source.addEventListener("partial", (message) => grow(JSON.parse(message.data)));
  source.addEventListener("end", () => {
    stream.close();
    refresh();
  });
  source.onerror = () => {
    stale.textContent = OUTDATED;
    if (source.readyState !== EventSource.CLOSED) return;
    fetching = fetching.then(() => rowsUntil(Infinity)).catch(() => {}); // detects an ended login
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

const isSelecting = (part) => !getSelection().isCollapsed && part.contains(getSelection().anchorNode);
const versionOf = (part) => part.querySelector("[data-version]")?.dataset.version;
let shown = versionOf(overview); // the version of the history that the view shows

async function load(address) {
  const answer = await fetch(address, { credentials: "same-origin" }).catch(() => ({ ok: false }));
  if (answer.status === 401) location.reload();
  // In the conversation, the event stream says whether the server answers.
  if (answer.ok && !(list && stale.textContent === OUTDATED)) showAge(ageOf(answer));
  if (!answer.ok && !list) stale.textContent = OUTDATED;
  // The server renders and escapes this, like the page.
  return answer.ok ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
}

// Replace a part of the page. What was folded out and the focus stay.
function replace(part, fresh) {
  const details = Array.from(part.querySelectorAll("details"));
  const nameOf = (each, index) => each.id || String(index);
  const wasOpen = new Map(details.map((each, index) => [nameOf(each, index), each.open]));
  const href = part.contains(document.activeElement) && document.activeElement.getAttribute("href");
  const focused = part.contains(document.activeElement) && document.activeElement.closest("details");
  const at = focused && document.activeElement.tagName === "SUMMARY" && nameOf(focused, details.indexOf(focused));
  part.replaceChildren(...fresh.childNodes);
  part.querySelectorAll("details").forEach((each, index) => {
    each.open = wasOpen.get(nameOf(each, index)) ?? each.open;
    if (at === nameOf(each, index)) each.querySelector("summary").focus({ preventScroll: true });
  });
  if (href) part.querySelector(`a[href="${CSS.escape(href)}"]`)?.focus({ preventScroll: true });
}

async function refresh() {
  if (document.hidden) return;
  const top = await load(overview.dataset.here);
  if (!top) return;
  const version = versionOf(top);
  if (!isSelecting(overview)) replace(overview, top.body);
  if (list || version === shown || isSelecting(view)) return;
  const page = await load(location.pathname);
  const fresh = page && page.getElementById("view");
  if (!fresh || isSelecting(view)) return;
  replace(view, fresh);
  shown = version;
}

const EVERY_MS = 5000;
const again = () => setTimeout(() => refresh().catch(() => {}).finally(again), EVERY_MS);
again();
document.addEventListener("visibilitychange", () => refresh().catch(() => {}));
if (list) stream = liveStream(() => `${base}/events?partial=1&start=${next}`, follow);
