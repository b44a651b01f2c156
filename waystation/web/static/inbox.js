// Keeps the list of what waits fresh. Without it the page reloads itself now and then.
"use strict";

const list = document.getElementById("list");
const stale = document.getElementById("stale");
const EVERY_MS = 5000;

// Not while somebody is choosing: what is under the finger must not move.
const busy = () => document.hidden || list.querySelector("input:checked") || list.contains(document.activeElement);

async function refresh() {
  if (busy()) return;
  const asked = fetch(`/approvals/rows?${list.dataset.here}`, { credentials: "same-origin" });
  const answer = await asked.catch(() => ({ ok: false }));
  // Not logged in any more: the page itself says so, or leads to the login.
  if (answer.status === 401) location.reload();
  // Otherwise it would look as if nothing new waited.
  stale.textContent = answer.ok ? "" : "The server does not answer, so this list may be out of date.";
  if (!answer.ok) return;
  // Rendered and escaped by the server, as the page itself.
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").body;
  if (busy() || fresh.innerHTML.trim() === list.dataset.shown) return;
  list.dataset.shown = fresh.innerHTML.trim();
  list.replaceChildren(...fresh.childNodes);
}

// The next one only after the one before: where much waits, the server takes its time.
const again = () => setTimeout(() => refresh().catch(() => {}).finally(again), EVERY_MS);
again();
document.addEventListener("visibilitychange", () => refresh().catch(() => {}));
