// Lets the page of an invocation grow. Without it the page is whole, and reloads itself now and then.
"use strict";

const list = document.getElementById("events");
const partial = document.getElementById("partial");
const stale = document.getElementById("stale");
const base = list.dataset.base;
let next = Number(list.dataset.next);
let fetching = Promise.resolve();
const said = new Map(); // model call -> { attempt, from, text, line }

let source;

function follow() {
  source = new EventSource(`${base}/events?partial=1&start=${next}`);
  source.onopen = () => (stale.textContent = "");
  source.onmessage = (message) => {
    const wanted = Number(message.lastEventId) + 1;
    fetching = fetching.then(() => rowsUntil(wanted)).catch(() => {}); // the next one fetches both
  };
  source.addEventListener("partial", (message) => grow(JSON.parse(message.data)));
  source.addEventListener("end", (message) => {
    source.close();
    document.getElementById("status").textContent = JSON.parse(message.data).status;
  });
  source.onerror = () => {
    stale.textContent = "The server does not answer, so this page may be out of date.";
    // After a lost connection it comes back by itself, after a refusal it does not.
    if (source.readyState !== EventSource.CLOSED) return;
    fetching = fetching.then(() => rowsUntil(Infinity)).catch(() => {}); // tells whether the login has ended
    setTimeout(follow, 5000);
  };
}

function grow(event) {
  const facts = event.customMetadata.partial_text;
  let shown = said.get(facts.model_call);
  if (facts.void || facts.complete) {
    // A complete text stays until its event stands in the list.
    const gone = () => shown && shown.line.remove();
    said.delete(facts.model_call);
    if (facts.void) gone();
    else setTimeout(() => fetching.then(gone), 0);
    return;
  }
  if (!shown || shown.attempt !== facts.attempt) {
    if (shown) shown.line.remove();
    shown = { attempt: facts.attempt, from: 0, text: "", line: document.createElement("p") };
    const who = document.createElement("b");
    who.textContent = event.author;
    shown.line.append(who, ": ", document.createElement("span"));
    partial.append(shown.line);
    said.set(facts.model_call, shown);
  }
  // After a reconnection some of it comes again, and some may be missing; its place says which.
  const piece = event.content.parts.map((part) => part.text || "").join("");
  const known = Array.from(shown.text);
  if (facts.offset < shown.from || facts.offset > shown.from + known.length) {
    shown.from = facts.offset;
    shown.text = piece;
  } else {
    shown.text = known.slice(0, facts.offset - shown.from).join("") + piece;
  }
  shown.line.lastChild.textContent = (shown.from ? "…" : "") + shown.text;
}

async function rowsUntil(wanted) {
  if (wanted <= next) return;
  const answer = await fetch(`${base}/rows?start=${next}`, { credentials: "same-origin" });
  // Not logged in any more: the page itself says so, or leads to the login.
  if (answer.status === 401) location.reload();
  if (!answer.ok) return;
  // Rendered and escaped by the server, as the page itself.
  const rows = new DOMParser().parseFromString(await answer.text(), "text/html").body.children;
  for (const row of Array.from(rows)) {
    list.append(row);
    next = Number(row.id.slice(1)) + 1;
  }
}

follow();
