// Keep the conversation of a session fresh, show text while a model writes, and send forms without leaving the page.
// Without JavaScript, the page is complete, its forms work, and it reloads itself.
"use strict";

const list = document.getElementById("turns");
const stale = document.getElementById("stale");
const OPEN_POLL_MS = 3000;
const IDLE_POLL_MS = 15000;
const EXPECTING_MS = 60000; // how long after a message its turn may begin
let sentAt = -EXPECTING_MS;
const sources = new Map(); // ID of a turn -> its event stream

// Parse what the server has rendered and escaped, like the page.
const parse = (html) => new DOMParser().parseFromString(html, "text/html");
const atEnd = () => window.innerHeight + window.scrollY >= document.body.scrollHeight - 200;

// Do not replace a turn while somebody fills in one of its forms.
const isBusy = (turn) => {
  const focus = document.activeElement;
  const typed = turn.querySelectorAll("textarea, input:not([type=hidden])");
  return (turn.contains(focus) && focus.matches("input, textarea")) || Array.from(typed).some((field) => field.value);
};

function put(fresh) {
  const scroll = atEnd();
  for (const turn of fresh.querySelectorAll("article.turn")) {
    const old = document.getElementById(turn.id);
    if (!old) list.insertBefore(turn, document.getElementById("queued"));
    else if (old.dataset.key !== turn.dataset.key && !isBusy(old)) {
      const open = Array.from(old.querySelectorAll("details")).map((each) => each.open);
      turn.querySelectorAll("details").forEach((each, index) => (each.open = open[index] || false));
      old.replaceWith(turn);
    }
  }
  const queued = fresh.getElementById("queued");
  if (queued) document.getElementById("queued").replaceWith(queued);
  // State, artifacts and tokens, unless somebody is selecting text in them.
  for (const id of ["usage", "panels"]) {
    const old = document.getElementById(id);
    const part = fresh.getElementById(id);
    if (part && !(!getSelection().isCollapsed && old.contains(getSelection().anchorNode))) old.replaceWith(part);
  }
  follow();
  if (scroll) document.getElementById("end").scrollIntoView({ block: "end" });
}

let refreshing = false;
let again = false;
async function refresh() {
  if (refreshing) {
    again = true; // something changed after the request was sent
    return;
  }
  refreshing = true;
  try {
    const known = Array.from(list.querySelectorAll("article.turn"), (turn) => turn.dataset.key);
    const answer = await fetch(`${list.dataset.path}/turns?known=${known}`, { credentials: "same-origin" });
    if (answer.status === 401) location.reload(); // the page leads to the login
    if (answer.ok) showAge(ageOf(answer));
    else stale.textContent = "The server does not answer, so this page may be out of date.";
    if (answer.ok) put(parse(await answer.text()));
  } catch {
    stale.textContent = "The server does not answer, so this page may be out of date.";
  } finally {
    refreshing = false;
  }
  if (again) {
    again = false;
    await refresh();
  }
}

// Follow the streams of open invocations.
function follow() {
  for (const turn of list.querySelectorAll("article.turn[data-events]")) {
    if (sources.has(turn.id)) continue;
    const stream = liveStream(() => document.getElementById(turn.id)?.dataset.events, (source) => {
      source.onmessage = () => refresh();
      source.addEventListener("partial", (message) => grow(turn.id, JSON.parse(message.data)));
      source.addEventListener("end", () => {
        stream.close();
        refresh();
      });
    });
    sources.set(turn.id, stream);
  }
}

function grow(id, event) {
  const place = document.querySelector(`#${id} .partial`);
  const facts = event.customMetadata.partial_text;
  let line = place.querySelector(`[data-call="${facts.model_call}"]`);
  // The turn with the complete text replaces this one.
  if (facts.complete) return;
  if (facts.void) {
    if (line) line.remove();
    return;
  }
  const scroll = atEnd();
  if (!line || line.dataset.attempt !== String(facts.attempt)) {
    if (line) line.remove();
    line = document.createElement("p");
    Object.assign(line.dataset, { call: facts.model_call, attempt: facts.attempt, from: facts.offset });
    place.append(line);
  }
  // After a reconnection, text may repeat or be missing; the offset tells.
  const piece = event.content.parts.map((part) => part.text || "").join("");
  const from = Number(line.dataset.from);
  const text = Array.from(line.textContent);
  if (facts.offset < from || facts.offset > from + text.length) {
    line.dataset.from = facts.offset;
    line.textContent = piece;
  } else {
    line.textContent = text.slice(0, facts.offset - from).join("") + piece;
  }
  if (scroll) document.getElementById("end").scrollIntoView({ block: "end" });
}

// Send a form, and return the page that answers it.
async function post(form, submitter) {
  const fields = new URLSearchParams(new FormData(form, submitter));
  const headers = { Accept: "text/html" }; // otherwise, a refusal would be JSON
  // Not `form.action`, which is the button of that name.
  const path = form.getAttribute("action");
  const answer = await fetch(path, { method: "POST", body: fields, headers, credentials: "same-origin" });
  return parse(await answer.text());
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  const isMessage = form.id === "composer";
  if (!isMessage && !form.classList.contains("inline")) return;
  event.preventDefault();
  try {
    const page = await post(form, event.submitter);
    const problem = page.getElementById("problem");
    const end = page.getElementById("end");
    if (isMessage && end) {
      sentAt = performance.now();
      document.getElementById("end").replaceWith(end);
      put(page);
      setTimeout(refresh, 1000);
      end.scrollIntoView({ block: "end" });
      const field = document.getElementById("message");
      if (field) field.focus();
    } else if (problem) {
      (form.querySelector(".error") || stale).textContent = problem.textContent;
    } else if (isMessage) {
      location.reload(); // the page leads to the login
    } else {
      form.reset();
      if (document.activeElement) document.activeElement.blur();
      put(page);
    }
  } catch {
    stale.textContent = "The server does not answer. Check the conversation before you send this again.";
  } finally {
    endSending(form);
  }
});

document.addEventListener("keydown", (event) => {
  if (event.target.id !== "message" || event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  event.target.form.requestSubmit();
});

document.documentElement.classList.add("scripts");
follow();
// Calls of called agents, and messages from other pages, are in no stream of an open turn.
const poll = () => {
  const isOpen = list.querySelector("article.turn[data-events]") || performance.now() - sentAt < EXPECTING_MS;
  setTimeout(() => (document.hidden ? poll() : refresh().finally(poll)), isOpen ? OPEN_POLL_MS : IDLE_POLL_MS);
};
poll();
if (location.hash === "#end" || list.querySelector("article.turn[data-events]")) document.getElementById("end").scrollIntoView({ block: "end" });
